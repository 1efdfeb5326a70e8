use serde_json::json;

use super::authorizer::Authorize;
use super::*;
use crate::access::Access;

struct OnlyGet;

impl Authorize for OnlyGet {
    fn authorize(
        &self,
        account: Option<&(String, String)>,
        access: &Access,
    ) -> std::result::Result<String, String> {
        match (account, access.verb.as_str()) {
            (None, "get") => Ok(format!("may get {}", access.resource)),
            _ => Err("no".to_owned()),
        }
    }
}

fn evaluate(source: &str) -> Result<Value> {
    let object = json!({
        "metadata": { "name": "web", "labels": { "app": "web", "tier": "front" } },
        "spec": { "replicas": 3, "ratio": 0.5, "flags": [true, false], "containers": [
            { "name": "a", "image": "nginx:1", "ports": [{ "containerPort": 80 }] },
            { "name": "b", "image": "busybox" },
        ] },
        "when": "2024-05-01T10:20:30Z", "nothing": null,
    });
    let twice = Program::parse("object.spec.replicas * 2").unwrap();
    let more = Program::parse("variables.twice + 1").unwrap();
    let later = Program::parse("variables.never").unwrap();
    let mut variables = Variables::new(&OnlyGet);
    variables.set("object", Value::from(&object));
    variables.set("authorizer", Value::Question(Default::default()));
    variables.add_lazy("twice", Ok(&twice));
    variables.add_lazy("more", Ok(&more));
    variables.add_lazy("later", Ok(&later));
    variables.add_lazy("never", Err("compilation failed".to_owned()));
    Program::parse(source)?.evaluate(&variables)
}

#[test]
fn expressions_that_hold() {
    for source in [
        "1 + 2 * 3 == 7 && -7 / 2 == -3 && -7 % 2 == -1",
        "string(1000000.0) == '1e+06' && string(999999.5) == '999999.5'",
        "duration('90s').getMilliseconds() == 90000",
        "1 == 1.0 && 1u == 1 && 1 < 1.5 && 2u > 1",
        "1 != 'a' && [1, 2] == [1.0, 2.0] && {'a': 1} == {'a': 1u}",
        "object.spec.replicas >= 3 && object.spec.ratio < 1.0",
        "object.metadata.labels['app'] == object.metadata.name",
        "'tier' in object.metadata.labels && !('x' in object.metadata.labels)",
        "has(object.spec.replicas) && !has(object.spec.missing)",
        "has(object.nothing) && object.nothing == null",
        "object.spec.containers.all(c, c.image.contains('n') || c.name == 'b')",
        "object.spec.containers.exists(c, has(c.ports) && c.ports[0].containerPort == 80)",
        "object.spec.containers.exists_one(c, c.name == 'a')",
        "object.spec.containers.map(c, c.name) == ['a', 'b']",
        "object.spec.containers.map(c, has(c.ports), c.name) == ['a']",
        "object.spec.containers.filter(c, !has(c.ports)).size() == 1",
        // An error counts only where the rest does not decide.
        "object.missing == 1 || true",
        "!(object.missing == 1 && false)",
        "[1, 2, 'a'].exists(x, x + 1 == 2)",
        "object.?spec.?missing.orValue(7) == 7 && object.?spec.?replicas.orValue(7) == 3",
        "!object.?missing.x.hasValue() && object.spec[?'replicas'].value() == 3",
        "object.?spec.replicas.optMap(n, n + 1).orValue(0) == 4",
        "optional.of(1).or(optional.of(2)).value() == 1 && !optional.none().hasValue()",
        "[?optional.none(), ?optional.of(2)] == [2] && {?'a': optional.none()} == {}",
        "object.metadata.labels.transformList(k, v, k + v) == ['appweb', 'tierfront']",
        "object.metadata.labels.transformMap(k, v, k.size())['tier'] == 4",
        "object.spec.flags.all(i, f, f == (i == 0))",
        "variables.twice == 6 && variables.more == 7",
        "string(1.5) + string(2) + string(true) == '1.52true' && int('7') + int(2.9) == 9",
        "type(1) == int && type(object) == map && type('') != type(b'')",
        "b'\\xff' != b'ab' && bytes('ab') == b'ab' && size('\u{e9}\u{e9}') == 2",
        "'%s %d %.2f %x %s'.format(['a', 3, 1.0, 255, [1, 'b']]) == 'a 3 1.00 ff [1, \"b\"]'",
        "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2)[1] == 'b,c'",
        "['a', 'b'].join('-') == 'a-b' && 'abc'.substring(1, 2) == 'b' && 'abc'.charAt(3) == ''",
        "'tacocat'.indexOf('c', 3) == 4 && 'tacocat'.lastIndexOf('a') == 5",
        "'Ab'.lowerAscii() == 'ab' && ' a '.trim() == 'a' && 'aab'.replace('a', 'x', 1) == 'xab'",
        "'abc123'.matches('[0-9]+$') && 'a1b2'.findAll('[0-9]') == ['1', '2']",
        "[3, 1, 2].sort() == [1, 2, 3] && [3, 1].max() == 3 && [1, 2].sum() == 3",
        "object.spec.containers.sortBy(c, c.image)[0].name == 'b'",
        "[1, 2, 2].distinct().size() == 2 && [[1], [2]].flatten() == [1, 2]",
        "sets.contains([1, 2], [2]) && sets.intersects([1], [1, 3]) && lists.range(2) == [0, 1]",
        "timestamp(object.when).getFullYear() == 2024 && timestamp(object.when).getMonth() == 4",
        "timestamp(object.when).getHours('+02:30') == 12",
        "timestamp(object.when) + duration('1h30m') > timestamp('2024-05-01T11:00:00Z')",
        "duration('1.5s') == duration('1500ms') && string(duration('90m')) == '5400s'",
        "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('2k').asInteger() == 2000",
        "quantity('500m').add(quantity('500m')) == quantity('1') && !isQuantity('x')",
        "ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').containsIP('10.1.2.3')",
        "!cidr('10.0.0.0/16').containsCIDR('10.0.0.0/8') && isIP('::1') && !isIP('x')",
        "url('https://a.b:80/c?d=e').getHostname() == 'a.b' && url('/x').getEscapedPath() == '/x'",
        "url('https://a/?k=v').getQuery()['k'] == ['v'] && !isURL('a b')",
        "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.0.0-a').compareTo(semver('1.0.0')) == -1",
        "!format.dns1123Label().validate('web').hasValue()",
        "format.dns1123Label().validate('Web').hasValue() && !format.named('x').hasValue()",
        "authorizer.group('apps').resource('deployments').name('x').check('get').allowed()",
        "!authorizer.serviceAccount('ns', 'a').group('').resource('pods').check('get').allowed()",
        "authorizer.group('').resource('pods').check('get').reason() == 'may get pods'",
        "object.spec.replicas > 2 ? true : object.missing",
    ] {
        assert_eq!(evaluate(source), Ok(Value::Bool(true)), "{source}");
    }
}

#[test]
fn errors_have_the_text_of_cel_go() {
    for (source, expected) in [
        ("object.spec.missing", "no such key: missing"),
        ("object.spec.missing.more", "no such key: missing"),
        ("object.spec.replicas.x", "no such overload"),
        ("object.metadata.labels['x']", "no such key: x"),
        ("[1][2]", "index out of bounds: 2"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("1 + 'a'", "no such overload"),
        ("nope", "no such attribute(s): nope"),
        ("object.missing == 1 || false", "no such key: missing"),
        ("[1, 'a'].all(x, x > 0)", "no such overload"),
        ("optional.none().value()", "optional.none() dereference"),
        ("variables.nope", "no such key: nope"),
        // A variable can use only those before it.
        ("variables.later", "composited variable \"later\" fails to evaluate: no such key: never"),
        ("variables.never", "composited variable \"never\" fails to evaluate: compilation failed"),
        ("object.x.map(a, a)", "no such key: x"),
    ] {
        assert_eq!(evaluate(source), Err(expected.to_owned()), "{source}");
    }
}

#[test]
fn steps_are_bounded() {
    let long = "lists.range(9000).map(i, 'abcdefghij').join()";
    for source in [
        "lists.range(2000).all(a, lists.range(2000).all(b, a + b >= 0))",
        "lists.range(10000000000).size() > 0",
        &format!("{long}.replace('', {long}).size() > 0"),
        &format!("lists.range(1000).map(i, 'a').join({long}).size() > 0"),
    ] {
        assert_eq!(evaluate(source).unwrap_err(), COST_LIMIT, "{source}");
    }
    assert_eq!(
        evaluate("lists.range(3000).map(x, x).filter(x, x >= 0).size()"),
        Ok(Value::Int(3000))
    );
}
