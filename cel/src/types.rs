//! Types, their printed form, and assignability. Upstream: cel-go's `common/types.Type`,
//! `checker.FormatCELType`, `checker.isAssignable`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A type of CEL.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    Bool,
    Bytes,
    Double,
    Duration,
    Dyn,
    /// The type of an expression with an issue. It fits everything.
    Error,
    Int,
    Null,
    String,
    Timestamp,
    Uint,
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    /// A type without fields, by name and parameters: `optional_type(V)`, `net.IP`.
    Opaque(&'static str, Arc<[Type]>),
    Struct(Arc<Struct>),
    /// The type of a type.
    Kind(Option<Arc<Type>>),
    /// A type parameter.
    Param(u32),
}

/// A type with fields. Its name identifies it.
#[derive(Debug)]
pub struct Struct {
    pub name: String,
    pub fields: Fields,
}

pub enum Fields {
    /// Selecting a field is an issue: upstream cannot resolve such types.
    Unknown,
    Known(BTreeMap<String, Type>),
    /// Looked up on demand.
    Lazy(Box<dyn LazyFields>),
}

/// Fields of types that are too large to expand in advance.
pub trait LazyFields: Send + Sync {
    /// Returns the type of the field `name` of the type `of`.
    fn field(&self, of: &str, name: &str) -> Option<Type>;
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fields")
    }
}

impl PartialEq for Struct {
    fn eq(&self, other: &Struct) -> bool {
        self.name == other.name
    }
}

impl Struct {
    /// Returns the type of a field. `None`: there is no such field.
    pub fn field(&self, name: &str) -> Option<Type> {
        match &self.fields {
            Fields::Unknown => None,
            Fields::Known(fields) => fields.get(name).cloned(),
            Fields::Lazy(fields) => fields.field(&self.name, name),
        }
    }
}

impl Type {
    pub fn list(of: Type) -> Type {
        Type::List(Arc::new(of))
    }

    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new((key, value)))
    }

    pub fn optional(of: Type) -> Type {
        Type::Opaque(OPTIONAL, Arc::new([of]))
    }

    pub fn type_of(of: Type) -> Type {
        Type::Kind(Some(Arc::new(of)))
    }

    pub fn structure(name: impl Into<String>, fields: Fields) -> Type {
        Type::Struct(Arc::new(Struct { name: name.into(), fields }))
    }

    pub fn is_dyn(&self) -> bool {
        *self == Type::Dyn
    }

    pub fn is_dyn_or_error(&self) -> bool {
        self.is_dyn() || *self == Type::Error
    }

    /// Returns the type inside an optional. `None`: this is not an optional.
    pub fn unwrap_optional(&self) -> Option<&Type> {
        match self {
            Type::Opaque(OPTIONAL, params) => params.first(),
            _ => None,
        }
    }

    /// Returns the name without parameters. Upstream: `TypeName`.
    pub fn name(&self) -> &str {
        match self {
            Type::Bool => "bool",
            Type::Bytes => "bytes",
            Type::Double => "double",
            Type::Duration => "google.protobuf.Duration",
            Type::Dyn => "dyn",
            Type::Error => "error",
            Type::Int => "int",
            Type::Null => "null_type",
            Type::String => "string",
            Type::Timestamp => "google.protobuf.Timestamp",
            Type::Uint => "uint",
            Type::List(_) => "list",
            Type::Map(_) => "map",
            Type::Opaque(name, _) => name,
            Type::Struct(of) => &of.name,
            Type::Kind(_) => "type",
            Type::Param(_) => "param",
        }
    }

    /// Returns whether the type consists of more than `most` types, itself included. Counts no
    /// further: a type may double with each variable that is built from the one before.
    pub fn has_more_parts_than(&self, most: usize) -> bool {
        /// Counts parts of the type in `budget`; `true`: it does not suffice.
        fn count(of: &Type, budget: &mut usize) -> bool {
            let Some(remaining) = budget.checked_sub(1) else { return true };
            *budget = remaining;
            match of {
                Type::Map(of) => count(&of.0, budget) || count(&of.1, budget),
                other => other.params().iter().any(|inner| count(inner, budget)),
            }
        }
        count(self, &mut { most })
    }

    /// Returns the types inside this one. Those of a map are in its own fields.
    fn params(&self) -> &[Type] {
        match self {
            Type::List(of) | Type::Kind(Some(of)) => std::slice::from_ref(of),
            Type::Opaque(_, params) => params,
            _ => &[],
        }
    }

    /// Returns whether the type is equal to `other`, or has `dyn` or a parameter where `other` has
    /// a type. Upstream: `isEqualOrLessSpecific`.
    fn less_specific_than(&self, other: &Type) -> bool {
        if self.is_dyn() || matches!(self, Type::Param(_)) {
            return true;
        }
        if other.is_dyn() || matches!(other, Type::Param(_)) {
            return false;
        }
        match (self, other) {
            (Type::Opaque(a, p), Type::Opaque(b, q)) => {
                a == b
                    && p.len() == q.len()
                    && p.iter().zip(q.iter()).all(|(a, b)| a.less_specific_than(b))
            }
            (Type::List(a), Type::List(b)) => a.less_specific_than(b),
            (Type::Map(a), Type::Map(b)) => {
                a.0.less_specific_than(&b.0) && a.1.less_specific_than(&b.1)
            }
            (Type::Kind(_), Type::Kind(_)) => true,
            _ => self == other,
        }
    }

    /// Returns the more general of two types that fit each other.
    pub fn most_general<'a>(&'a self, other: &'a Type) -> &'a Type {
        if self.less_specific_than(other) { self } else { other }
    }

    /// Returns whether `null` is a value of the type.
    fn is_nullable(&self) -> bool {
        matches!(
            self,
            Type::Null | Type::Opaque(..) | Type::Struct(_) | Type::Duration | Type::Timestamp
        )
    }
}

const OPTIONAL: &str = "optional_type";

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Duration => f.write_str("duration"),
            Type::Error => f.write_str("!error!"),
            Type::Null => f.write_str("null"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Param(n) => write!(f, "_var{n}"),
            Type::Map(of) => write!(f, "map({}, {})", of.0, of.1),
            other => {
                f.write_str(other.name())?;
                if let Some((first, rest)) = other.params().split_first() {
                    write!(f, "({first}")?;
                    rest.iter().try_for_each(|param| write!(f, ", {param}"))?;
                    f.write_str(")")?;
                }
                Ok(())
            }
        }
    }
}

/// The steps of comparing and replacing types that one expression may take: comprehensions can
/// double a type again and again. After these everything fits, and types are dynamic.
const MAX_STEPS: u32 = 4_000_000;
/// The parts of one type; the others are dynamic.
const MAX_PARTS: u32 = 10_000;

/// The type parameters and the types they stand for.
#[derive(Default)]
pub struct Substitutions {
    known: Vec<Option<Type>>,
    steps: Cell<u32>,
    /// The former value of each change, to undo a failed attempt.
    journal: Vec<(u32, Option<Type>)>,
}

impl Substitutions {
    /// Counts a step. `false`: there were too many.
    fn step(&self) -> bool {
        let steps = self.steps.get().saturating_add(1);
        self.steps.set(steps);
        steps <= MAX_STEPS
    }

    /// Makes an unbound parameter.
    pub fn fresh(&mut self) -> u32 {
        self.known.push(None);
        self.known.len() as u32 - 1
    }

    fn find(&self, param: u32) -> Option<&Type> {
        self.known.get(param as usize)?.as_ref()
    }

    /// Binds a parameter, and keeps in the journal what it was bound to before.
    fn set(&mut self, param: u32, to: Type) {
        if let Some(known) = self.known.get_mut(param as usize) {
            self.journal.push((param, known.replace(to)));
        }
    }

    /// Tests whether each of `types` fits its place. If all do, binds parameters accordingly.
    pub fn assign_all(&mut self, types: &[Type], places: &[Type]) -> bool {
        self.journal.clear();
        if self.fits_all(types, places) {
            return true;
        }
        while let Some((param, before)) = self.journal.pop() {
            self.known[param as usize] = before;
        }
        false
    }

    /// Tests whether `this` fits its place, and binds parameters if it does.
    pub fn assign(&mut self, this: &Type, place: &Type) -> bool {
        self.assign_all(std::slice::from_ref(this), std::slice::from_ref(place))
    }

    fn fits_all(&mut self, types: &[Type], places: &[Type]) -> bool {
        types.len() == places.len()
            && types.iter().zip(places).all(|(this, place)| self.fits(this, place))
    }

    /// Tests whether a value of the type `this` may stand where `place` is expected, and binds
    /// parameters on the way.
    fn fits(&mut self, this: &Type, place: &Type) -> bool {
        if !self.step() {
            // After too many steps everything fits.
            return true;
        }
        if let Type::Param(param) = place {
            let (valid, known) = self.substitutes(this, *param);
            if valid || known {
                return valid;
            }
        }
        if let Type::Param(param) = this {
            return self.substitutes(place, *param).0;
        }
        if this.is_dyn_or_error() || place.is_dyn_or_error() {
            return true;
        }
        match (this, place) {
            (Type::Null, other) | (other, Type::Null) => other.is_nullable(),
            (Type::Kind(_), Type::Kind(_)) => true,
            (Type::List(a), Type::List(b)) => self.fits(a, b),
            (Type::Map(a), Type::Map(b)) => self.fits(&a.0, &b.0) && self.fits(&a.1, &b.1),
            (Type::Opaque(a, p), Type::Opaque(b, q)) => a == b && self.fits_all(p, q),
            _ => this == place,
        }
    }

    /// Tests whether `param` may stand for `this`, and binds it if so. Returns whether it may, and
    /// whether `param` was bound before or is `this` itself.
    fn substitutes(&mut self, this: &Type, param: u32) -> (bool, bool) {
        if *this == Type::Param(param) {
            return (true, true);
        }
        if let Some(known) = self.find(param).cloned() {
            if *this == known {
                return (true, true);
            }
            if self.fits(this, &known) {
                let general = this.most_general(&known);
                if self.is_free_of(param, general) {
                    self.set(param, general.clone());
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.is_free_of(param, this) {
            self.set(param, this.clone());
            return (true, false);
        }
        (false, false)
    }

    /// Returns whether a type does not contain the parameter, which must not be bound to itself.
    /// Upstream: `notReferencedIn`.
    fn is_free_of(&self, param: u32, within: &Type) -> bool {
        if !self.step() {
            return false;
        }
        match within {
            Type::Param(other) if *other == param => false,
            Type::Param(other) => match self.find(*other) {
                Some(known) => self.is_free_of(param, known),
                None => true,
            },
            Type::Map(of) => self.is_free_of(param, &of.0) && self.is_free_of(param, &of.1),
            other => other.params().iter().all(|inner| self.is_free_of(param, inner)),
        }
    }

    /// Returns `of` with bound parameters replaced.
    pub fn resolve(&self, of: &Type) -> Type {
        self.replace(of, &|param| Type::Param(param), &Cell::new(MAX_PARTS))
    }

    /// Returns `of` with bound parameters replaced and unbound ones as `dyn`.
    pub fn finish(&self, of: &Type) -> Type {
        self.replace(of, &|_| Type::Dyn, &Cell::new(MAX_PARTS))
    }

    /// Returns `of` with its parameters replaced; an unbound one becomes `unknown` of it. `budget`:
    /// how many parts the result may have.
    fn replace(&self, of: &Type, unknown: &dyn Fn(u32) -> Type, budget: &Cell<u32>) -> Type {
        let Some(remaining) = budget.get().checked_sub(1).filter(|_| self.step()) else {
            return Type::Dyn;
        };
        budget.set(remaining);
        match of {
            Type::Param(param) => match self.find(*param) {
                Some(known) => self.replace(known, unknown, budget),
                None => unknown(*param),
            },
            other => other.map_params(&mut |inner| self.replace(inner, unknown, budget)),
        }
    }
}

impl Type {
    /// Returns the same type with its parameters changed.
    pub fn map_params(&self, change: &mut dyn FnMut(&Type) -> Type) -> Type {
        match self {
            Type::List(of) => Type::list(change(of)),
            Type::Map(of) => Type::map(change(&of.0), change(&of.1)),
            Type::Opaque(name, params) => Type::Opaque(name, params.iter().map(change).collect()),
            Type::Kind(Some(of)) => Type::type_of(change(of)),
            other => other.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_print_as_in_cel_go() {
        let url = Type::structure("kubernetes.URL", Fields::Unknown);
        for (of, text) in [
            (Type::map(Type::String, Type::list(Type::Timestamp)), "map(string, list(timestamp))"),
            (Type::optional(Type::Param(3)), "optional_type(_var3)"),
            (Type::type_of(url), "type(kubernetes.URL)"),
            (Type::Kind(None), "type"),
            (Type::Opaque("net.IP", Arc::new([])), "net.IP"),
        ] {
            assert_eq!(of.to_string(), text);
        }
    }

    #[test]
    fn parts_are_counted_up_to_a_limit() {
        let mut doubled = Type::Int;
        for _ in 0..200 {
            doubled = Type::map(doubled.clone(), doubled);
        }
        assert!(doubled.has_more_parts_than(1000));
        let of = Type::map(Type::String, Type::list(Type::Int));
        assert!(of.has_more_parts_than(3) && !of.has_more_parts_than(4));
    }

    #[test]
    fn a_failed_assignment_binds_nothing() {
        let mut known = Substitutions::default();
        let (a, b) = (Type::Param(known.fresh()), Type::Param(known.fresh()));
        assert!(!known.assign_all(&[Type::Int, Type::Bool], &[a.clone(), Type::String]));
        assert_eq!(known.resolve(&a), a);
        assert!(known.assign_all(&[Type::list(a.clone()), Type::Int], &[b.clone(), a.clone()]));
        assert_eq!(known.finish(&b), Type::list(Type::Int));
        assert!(!known.assign(&Type::String, &a));
        assert!(!known.assign(&Type::list(b.clone()), &b), "a type within itself");
    }
}
