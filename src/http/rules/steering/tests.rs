use super::*;
use http::HeaderValue;
use proptest::prelude::*;

fn fields(fields: &[(&'static str, &str)]) -> HeaderMap {
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).unwrap();
    let fields = fields.iter();
    fields.map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
}

fn config() -> HttpConfig {
    let tag_fields = ["surrogate-key", "cache-tag"].map(HeaderName::from_static).to_vec();
    HttpConfig { tag_fields, ..HttpConfig::default() }
}

fn origin(url: &str, scope: Option<&str>) -> GroupOrigin {
    let url: Uri = url.parse().unwrap();
    let (parts, ()) = http::Request::new(()).into_parts();
    GroupOrigin::of(&parts, &url, url.scheme_str().unwrap(), scope)
}

fn here() -> GroupOrigin {
    origin("http://a.example/x", None)
}

fn named(text: &str) -> Groups {
    groups(&fields(&[("cache-groups", text)]), &CACHE_GROUPS, 64)
}

fn ended(text: &str, config: &HttpConfig) -> Vec<Tag> {
    invalidated(&fields(&[("cache-group-invalidation", text)]), &here(), config)
}

#[test]
fn groups_are_a_list_of_strings_whose_parameters_mean_nothing() {
    // RFC 9875, 2
    for (text, expected) in [
        ("\"a\"", &["a"][..]),
        ("\"a\", \"b\"", &["a", "b"]),
        ("\"a\";x=1;y, \"B b\"", &["a", "B b"]),
        ("\"a\\\"\\\\\"", &["a\"\\"]),
        ("\"\"", &[""]),
    ] {
        let expected = expected.iter().map(ToString::to_string).collect();
        assert_eq!(named(text), Groups::Named(expected), "{text}");
    }
    let lines = fields(&[("cache-groups", "\"a\""), ("cache-groups", "\"b\"")]);
    let both = Groups::Named(vec!["a".into(), "b".into()]);
    assert_eq!(groups(&lines, &CACHE_GROUPS, 64), both);
}

#[test]
fn a_field_that_is_no_list_of_strings_is_ignored_as_a_whole() {
    // RFC 9651, 4.2, and RFC 9875, 2
    for text in [
        "a",
        "\"a\", b",
        "\"a\", (\"b\")",
        "\"a\", 1",
        "\"a\", ?1",
        "\"a\", :YQ==:",
        "\"a\",",
        "\"a\" \"b\"",
        "\"a",
        "\"a\\x\"",
        "\"\u{e9}\"",
        "\"a\";",
        ";",
        "*",
    ] {
        assert_eq!(named(text), Groups::Unsaid, "{text}");
        assert_eq!(ended(text, &config()), [], "{text}");
    }
    let lines = fields(&[("cache-groups", "\"a\""), ("cache-groups", "b")]);
    assert_eq!(groups(&lines, &CACHE_GROUPS, 64), Groups::Unsaid);
}

#[test]
fn thirty_two_groups_of_thirty_two_characters_are_read() {
    // RFC 9875, 2
    let all: Vec<String> = (0..32).map(|n| format!("{n:032}")).collect();
    let text = all.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    assert_eq!(named(&text), Groups::Named(all));
    let tags = tags(&fields(&[("cache-groups", &text)]), &[], &here(), &config()).unwrap();
    // Each of them, and that of all groups.
    assert_eq!(tags.len(), 33);
    assert_eq!(ended(&text, &config()), tags[..32]);
}

#[test]
fn ten_thousand_groups_are_too_many_to_store_and_end_all_groups_of_the_origin() {
    let text = vec!["\"a\""; 10_000].join(",");
    assert_eq!(named(&text), Groups::TooMany);
    let all = fields(&[("cache-groups", &text)]);
    let refused = tags(&all, &[], &here(), &config());
    assert_eq!(refused, Err(DeclineReason::TooManyTags));
    let one = tags(&fields(&[("cache-groups", "\"a\"")]), &[], &here(), &config()).unwrap();
    assert_eq!(ended(&text, &config()), one[1..]);
    assert_eq!(ended(&(text + ", b"), &config()), [], "it is no list of strings");
}

#[test]
fn a_huge_name_makes_a_tag_as_small_as_any_other() {
    let huge = format!("\"{}\"", "x".repeat(60_000));
    let tags = tags(&fields(&[("cache-groups", &huge)]), &[], &here(), &config()).unwrap();
    assert!(tags.iter().all(|tag| tag.as_bytes().len() < 32));
    assert_eq!(ended(&huge, &config()), tags[..1]);
}

#[test]
fn groups_of_other_origins_and_scopes_are_other_groups() {
    let names = ["a", "A", "", "a\""];
    let origins = [
        here(),
        origin("https://a.example/x", None),
        origin("http://b.example/x", None),
        origin("http://a.example:8080/x", None),
        origin("http://a.example/x", Some("s")),
        GroupOrigin::default(),
    ];
    let groups = origins.iter().flat_map(|origin| names.map(|name| origin.group(name)));
    let mut all: Vec<_> = groups.chain(origins.iter().map(GroupOrigin::all_groups)).collect();
    let count = all.len();
    all.sort_by_key(|tag| tag.as_bytes().to_vec());
    all.dedup();
    assert_eq!(all.len(), count);
    assert_eq!(origin("http://A.example:80/y?z", None).group("a"), here().group("a"));
}

#[test]
fn tags_stand_between_blanks_or_commas_as_the_field_says() {
    let read = |all: &[_]| tags(&fields(all), &["said".into()], &here(), &config()).unwrap();
    let tags = |names: &[&str]| -> Vec<Tag> { names.iter().map(|name| Tag::from(*name)).collect() };
    assert_eq!(read(&[("surrogate-key", " a  b,c\td ")]), tags(&["said", "a", "b,c", "d"]));
    assert_eq!(read(&[("cache-tag", "a, b c ,,d")]), tags(&["said", "a", "b c", "d"]));
    let both = [("cache-tag", "a"), ("cache-tag", "b,a"), ("surrogate-key", "said * x")];
    assert_eq!(read(&both), tags(&["said", "x", "a", "b"]));
    assert_eq!(read(&[("xkey", "a")]), tags(&["said"]), "no setting names it");
}

#[test]
fn too_many_tags_or_one_too_long_are_refused() {
    let refused = |text: &str| tags(&fields(&[("surrogate-key", text)]), &[], &here(), &config());
    let many: Vec<String> = (0..65).map(|n| n.to_string()).collect();
    assert_eq!(refused(&many.join(" ")), Err(DeclineReason::TooManyTags));
    assert_eq!(refused(&many[1..].join(" ")).map(|tags| tags.len()), Ok(64));
    assert_eq!(refused(&"x".repeat(1025)), Err(DeclineReason::TooManyTags));
    assert_eq!(refused(&"x".repeat(1024)).map(|tags| tags.len()), Ok(1));
    // All sources together.
    let all = fields(&[("surrogate-key", &many[1..].join(" ")), ("cache-groups", "\"a\"")]);
    assert_eq!(tags(&all, &[], &here(), &config()), Err(DeclineReason::TooManyTags));
}

#[test]
fn groups_that_do_not_count_are_not_read() {
    let config = HttpConfig { cache_groups: false, ..config() };
    let all = fields(&[("cache-groups", "\"a\"")]);
    assert_eq!(tags(&all, &[], &here(), &config), Ok(Vec::new()));
    assert_eq!(ended("\"a\"", &config), []);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(lines: Vec<Vec<u8>>, text in "[a-z=\"?:@%();, 0-9.*\\\\-]{0,40}") {
        let lines = lines.iter().map(Vec::as_slice).chain([text.as_bytes()]);
        let lines: Vec<_> = lines.filter_map(|line| HeaderValue::from_bytes(line).ok()).collect();
        for name in ["cache-groups", "cache-group-invalidation", "surrogate-key", "cache-tag"] {
            let name = HeaderName::from_static(name);
            let all: HeaderMap = lines.iter().map(|line| (name.clone(), line.clone())).collect();
            let _ = tags(&all, &[], &here(), &config());
            let _ = invalidated(&all, &here(), &config());
        }
    }
}
