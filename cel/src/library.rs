//! The functions that a policy may call: those of the environment for stored expressions.
//! Upstream: cel-go's `stdlib`, `cel.OptionalTypes` and `ext`, Kubernetes' `apiserver/pkg/cel`:
//! `environment.baseOpts` and `library`.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::types::{Fields, Substitutions, Type};

/// One way to call a function.
#[derive(Clone, Debug)]
pub struct Overload {
    /// Whether it is called on its first argument.
    pub member: bool,
    pub args: Vec<Type>,
    pub result: Type,
    params: u32,
}

impl Overload {
    /// Returns the types of arguments and result, with fresh type parameters.
    pub fn instantiate(&self, known: &mut Substitutions) -> (Vec<Type>, Type) {
        if self.params == 0 {
            return (self.args.clone(), self.result.clone());
        }
        let fresh: Vec<u32> = (0..self.params).map(|_| known.fresh()).collect();
        let args = self.args.iter().map(|arg| rename_params(arg, &fresh)).collect();
        (args, rename_params(&self.result, &fresh))
    }
}

/// Returns `of` with its parameters replaced by those of these numbers.
fn rename_params(of: &Type, names: &[u32]) -> Type {
    match of {
        Type::Param(n) => Type::Param(names[*n as usize]),
        other => other.map_params(&mut |inner| rename_params(inner, names)),
    }
}

/// Returns the overloads of a function, in the order in which they are tried. Empty: no such
/// function.
pub fn overloads(function: &str) -> &'static [Overload] {
    static TABLE: LazyLock<HashMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
        let mut table: HashMap<&'static str, Vec<Overload>> = HashMap::new();
        for (name, overload) in FUNCTIONS.lines().flat_map(parse_line) {
            table.entry(name).or_default().push(overload);
        }
        table
    });
    TABLE.get(function).map(Vec::as_slice).unwrap_or_default()
}

/// Returns the type that `name` names, if it names one.
pub fn named_type(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "duration" | "google.protobuf.Duration" => Type::Duration,
        "int" => Type::Int,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "null_type" => Type::Null,
        "optional_type" => Type::optional(Type::Dyn),
        "string" => Type::String,
        "timestamp" | "google.protobuf.Timestamp" => Type::Timestamp,
        "type" => Type::Kind(None),
        "uint" => Type::Uint,
        "net.IP" => Type::Opaque("net.IP", Arc::new([])),
        "net.CIDR" => Type::Opaque("net.CIDR", Arc::new([])),
        _ => return None,
    })
}

/// Reads a line of [`FUNCTIONS`]: a name, then each overload as `(ARGS)RESULT` or
/// `RECEIVER.(ARGS)RESULT`.
fn parse_line(line: &'static str) -> Vec<(&'static str, Overload)> {
    let mut words = line.split_whitespace();
    let Some(name) = words.next() else { return Vec::new() };
    let templated = |word: &'static str| match word.split_once('$') {
        None => vec![word.to_owned()],
        Some((_, set)) => {
            // `…$set` is repeated for each type of the set, which replaces `@`.
            let types = if set.ends_with("summable") { &COMPARABLE[..4] } else { &COMPARABLE };
            let pattern = word.trim_end_matches(|c| c != '$').trim_end_matches('$');
            types.iter().map(|of| pattern.replace('@', of)).collect()
        }
    };
    words.flat_map(templated).filter_map(|word| Some((name, parse_overload(&word)?))).collect()
}

/// The types that have an order; the first four can be summed up.
const COMPARABLE: [&str; 8] =
    ["int", "uint", "double", "duration", "bool", "timestamp", "string", "bytes"];

/// Finds the position of the bracket that closes the one at the beginning.
fn closing_bracket(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (position, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(position);
        }
    }
    None
}

/// Reads `(ARGS)RESULT` or `RECEIVER.(ARGS)RESULT`.
fn parse_overload(text: &str) -> Option<Overload> {
    let open = if text.starts_with('(') { 0 } else { text.find(".(")? + 1 };
    let close = open + closing_bracket(&text[open..])?;
    let mut params = Vec::new();
    let mut args = Vec::new();
    if open > 0 {
        args.push(parse_type(&text[..open - 1], &mut params)?);
    }
    for arg in split(&text[open + 1..close]) {
        args.push(parse_type(arg, &mut params)?);
    }
    let result = parse_type(&text[close + 1..], &mut params)?;
    Some(Overload { member: open > 0, args, result, params: params.len() as u32 })
}

/// Splits at the commas outside brackets.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = text.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// Reads a type; a single letter is a type parameter, numbered by its position in `params`.
fn parse_type(text: &str, params: &mut Vec<char>) -> Option<Type> {
    if let Some((name, inner)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let mut inner = split(inner).into_iter().map(|part| parse_type(part, params));
        let first = inner.next()??;
        return Some(match name {
            "list" => Type::list(first),
            "map" => Type::map(first, inner.next()??),
            "optional" => Type::optional(first),
            "type" => Type::type_of(first),
            _ => return None,
        });
    }
    let mut letters = text.chars();
    if let (Some(letter), None) = (letters.next(), letters.next()) {
        let known = params.iter().position(|param| *param == letter);
        return Some(Type::Param(known.unwrap_or_else(|| {
            params.push(letter);
            params.len() - 1
        }) as u32));
    }
    Some(match text {
        "dyn" => Type::Dyn,
        "null" => Type::Null,
        "Authorizer" | "PathCheck" | "GroupCheck" | "ResourceCheck" | "Decision" => {
            Type::structure(format!("kubernetes.authorization.{text}"), Fields::Unknown)
        }
        "NamedFormat" | "Quantity" | "Semver" | "URL" => {
            Type::structure(format!("kubernetes.{text}"), Fields::Unknown)
        }
        "IP" => named_type("net.IP")?,
        "CIDR" => named_type("net.CIDR")?,
        other => named_type(other)?,
    })
}

const FUNCTIONS: &str = "
_?_:_ (bool,A,A)A
_&&_ (bool,bool)bool
_||_ (bool,bool)bool
!_ (bool)bool
@not_strictly_false (bool)bool
_==_ (A,A)bool
_!=_ (A,A)bool
_+_ (bytes,bytes)bytes (double,double)double (duration,duration)duration (duration,timestamp)timestamp (timestamp,duration)timestamp (int,int)int (list(A),list(A))list(A) (string,string)string (uint,uint)uint
_/_ (double,double)double (int,int)int (uint,uint)uint
_%_ (int,int)int (uint,uint)uint
_*_ (double,double)double (int,int)int (uint,uint)uint
-_ (double)double (int)int
_-_ (double,double)double (duration,duration)duration (int,int)int (timestamp,duration)timestamp (timestamp,timestamp)duration (uint,uint)uint
_<_ (bool,bool)bool (int,int)bool (int,double)bool (int,uint)bool (uint,uint)bool (uint,double)bool (uint,int)bool (double,double)bool (double,int)bool (double,uint)bool (string,string)bool (bytes,bytes)bool (timestamp,timestamp)bool (duration,duration)bool
_<=_ (bool,bool)bool (int,int)bool (int,double)bool (int,uint)bool (uint,uint)bool (uint,double)bool (uint,int)bool (double,double)bool (double,int)bool (double,uint)bool (string,string)bool (bytes,bytes)bool (timestamp,timestamp)bool (duration,duration)bool
_>_ (bool,bool)bool (int,int)bool (int,double)bool (int,uint)bool (uint,uint)bool (uint,double)bool (uint,int)bool (double,double)bool (double,int)bool (double,uint)bool (string,string)bool (bytes,bytes)bool (timestamp,timestamp)bool (duration,duration)bool
_>=_ (bool,bool)bool (int,int)bool (int,double)bool (int,uint)bool (uint,uint)bool (uint,double)bool (uint,int)bool (double,double)bool (double,int)bool (double,uint)bool (string,string)bool (bytes,bytes)bool (timestamp,timestamp)bool (duration,duration)bool
_[_] (list(A),int)A (map(A,B),A)B (optional(list(V)),int)optional(V) (optional(map(K,V)),K)optional(V)
@in (A,list(A))bool (A,map(A,B))bool
size (bytes)int bytes.()int (list(A))int list(A).()int (map(A,B))int map(A,B).()int (string)int string.()int
type (A)type(A)
bool (bool)bool (string)bool
bytes (bytes)bytes (string)bytes
double (double)double (int)double (string)double (uint)double
duration (duration)duration (int)duration (string)duration
dyn (A)dyn
int (int)int (double)int (duration)int (string)int (timestamp)int (uint)int
string (string)string (bool)string (bytes)string (double)string (duration)string (int)string (timestamp)string (uint)string (IP)string (CIDR)string
timestamp (timestamp)timestamp (int)timestamp (string)timestamp
uint (uint)uint (double)uint (int)uint (string)uint
contains string.(string)bool
endsWith string.(string)bool
startsWith string.(string)bool
matches (string,string)bool string.(string)bool
getFullYear timestamp.()int timestamp.(string)int
getMonth timestamp.()int timestamp.(string)int
getDayOfYear timestamp.()int timestamp.(string)int
getDayOfMonth timestamp.()int timestamp.(string)int
getDate timestamp.()int timestamp.(string)int
getDayOfWeek timestamp.()int timestamp.(string)int
getHours timestamp.()int timestamp.(string)int duration.()int
getMinutes timestamp.()int timestamp.(string)int duration.()int
getSeconds timestamp.()int timestamp.(string)int duration.()int
getMilliseconds timestamp.()int timestamp.(string)int duration.()int

optional.of (V)optional(V)
optional.ofNonZeroValue (V)optional(V)
optional.none ()optional(V)
optional.unwrap (list(optional(V)))list(V)
value optional(V).()V
hasValue optional(V).()bool
or optional(V).(optional(V))optional(V)
orValue optional(V).(V)V
_?._ (dyn,string)optional(V)
_[?_] (list(V),int)optional(V) (optional(list(V)),int)optional(V) (map(K,V),K)optional(V) (optional(map(K,V)),K)optional(V)
last list(V).()optional(V)
first list(V).()optional(V)
unwrapOpt list(optional(V)).()list(V)
cel.@mapInsert (map(K,V),K,V)map(K,V) (map(K,V),map(K,V))map(K,V)

charAt string.(int)string
indexOf list(A).(A)int string.(string)int string.(string,int)int
lastIndexOf list(A).(A)int string.(string)int string.(string,int)int
lowerAscii string.()string
upperAscii string.()string
replace string.(string,string)string string.(string,string,int)string
split string.(string)list(string) string.(string,int)list(string)
substring string.(int)string string.(int,int)string
trim string.()string
format string.(list(dyn))string
strings.quote (string)string
join list(string).()string list(string).(string)string

sets.contains (list(T),list(T))bool
sets.equivalent (list(T),list(T))bool
sets.intersects (list(T),list(T))bool

slice list(T).(int,int)list(T)
flatten list(list(T)).()list(T) list(dyn).(int)list(dyn)
sort list(@).()list(@)$comparable
@sortByAssociatedKeys list(T).(list(@))list(T)$comparable
lists.range (int)list(int)
reverse list(T).()list(T)
distinct list(T).()list(T)
isSorted list(@).()bool$comparable
sum list(@).()@$summable
max list(@).()@$comparable
min list(@).()@$comparable

find string.(string)string
findAll string.(string)list(string) string.(string,int)list(string)

url (string)URL
isURL (string)bool
getScheme URL.()string
getHost URL.()string
getHostname URL.()string
getPort URL.()string
getEscapedPath URL.()string
getQuery URL.()map(string,list(string))

path Authorizer.(string)PathCheck
group Authorizer.(string)GroupCheck
serviceAccount Authorizer.(string,string)Authorizer
resource GroupCheck.(string)ResourceCheck
subresource ResourceCheck.(string)ResourceCheck
namespace ResourceCheck.(string)ResourceCheck
name ResourceCheck.(string)ResourceCheck
fieldSelector ResourceCheck.(string)ResourceCheck
labelSelector ResourceCheck.(string)ResourceCheck
check PathCheck.(string)Decision ResourceCheck.(string)Decision
errored Decision.()bool
error Decision.()string
allowed Decision.()bool
reason Decision.()string

quantity (string)Quantity
isQuantity (string)bool
sign (Quantity)int
isGreaterThan Quantity.(Quantity)bool Semver.(Semver)bool
isLessThan Quantity.(Quantity)bool Semver.(Semver)bool
compareTo Quantity.(Quantity)int Semver.(Semver)int
asApproximateFloat Quantity.()double
asInteger Quantity.()int
isInteger Quantity.()bool
add Quantity.(Quantity)Quantity Quantity.(int)Quantity
sub Quantity.(Quantity)Quantity Quantity.(int)Quantity

ip (string)IP CIDR.()IP
ip.isCanonical (string)bool
isIP (string)bool
family IP.()int
isUnspecified IP.()bool
isLoopback IP.()bool
isLinkLocalMulticast IP.()bool
isLinkLocalUnicast IP.()bool
isGlobalUnicast IP.()bool
cidr (string)CIDR
isCIDR (string)bool
containsIP CIDR.(string)bool CIDR.(IP)bool
containsCIDR CIDR.(string)bool CIDR.(CIDR)bool
prefixLength CIDR.()int
masked CIDR.()CIDR

format.named (string)optional(NamedFormat)
format.dns1123Label ()NamedFormat
format.dns1123Subdomain ()NamedFormat
format.dns1035Label ()NamedFormat
format.qualifiedName ()NamedFormat
format.dns1123LabelPrefix ()NamedFormat
format.dns1123SubdomainPrefix ()NamedFormat
format.dns1035LabelPrefix ()NamedFormat
format.labelValue ()NamedFormat
format.uri ()NamedFormat
format.uuid ()NamedFormat
format.byte ()NamedFormat
format.date ()NamedFormat
format.datetime ()NamedFormat
validate NamedFormat.(string)optional(list(string))

semver (string)Semver (string,bool)Semver
isSemver (string)bool (string,bool)bool
major Semver.()int
minor Semver.()int
patch Semver.()int
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_overload_of_the_table_is_read() {
        for line in FUNCTIONS.lines().filter(|line| !line.is_empty()) {
            let words = line.split_whitespace().skip(1);
            let expected: usize = words
                .map(|word| match word {
                    _ if word.ends_with("$comparable") => 8,
                    _ if word.ends_with("$summable") => 4,
                    _ => 1,
                })
                .sum();
            assert_eq!(parse_line(line).len(), expected, "{line}");
        }
        let printed: Vec<String> = overloads("_[?_]")
            .iter()
            .map(|o| format!("{} {} -> {} / {}", o.args[0], o.args[1], o.result, o.params))
            .collect();
        assert_eq!(printed[2], "map(_var0, _var1) _var0 -> optional_type(_var1) / 2");
        assert_eq!(overloads("sum").len(), 4);
        assert!(overloads("sum").iter().all(|o| o.member && o.args.len() == 1));
        assert!(overloads("nope").is_empty());
    }
}
