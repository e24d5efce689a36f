//! Members that this version does not know keep their text.

use turnwheel_test_support::numbers::ANY_NUMBER;

use super::*;

const LOST_CALL: &str = r#"{"entryId":"00000030","parentId":null,"seq":48,"timestamp":"2026-11-21T20:19:09.669Z","promptId":"pr_1","type":"lost_call","estimate":{"input":7,"totalTokens":9}}"#;

/// Adds an unknown member to each object of the entry whose type keeps unknown members.
fn add_unknown_member(raw: &RawJson, value: &RawJson, count: &mut usize) -> RawJson {
    let Some(mut object) = Object::from_raw(raw) else { return raw.clone() };
    if let Some(Ok(blocks)) = object.get("content").map(RawJson::read::<Vec<RawJson>>) {
        let blocks: Vec<_> =
            blocks.iter().map(|block| add_unknown_member(block, value, count)).collect();
        object.set("content", &blocks);
    }
    for name in ["message", "output", "request", "decision", "error", "usage", "estimate"] {
        if let Some(inner) = object.get(name).filter(|it| it.text().starts_with('{')).cloned() {
            object.set_raw(name, add_unknown_member(&inner, value, count));
        }
    }
    object.set_raw("unknown", value.clone());
    *count += 1;
    object.into_raw()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn unknown_members_keep_their_text_in_every_kind(
        numbers in prop::collection::vec(ANY_NUMBER, 1..6)
    ) {
        let text = format!(r#"{{"a": [{}],"\u0062":"\/"}}"#, numbers.join(", "));
        let value = RawJson::from_text(text.as_str()).unwrap();
        let fixtures = FIXTURES.replace("\"AAAA\"", "\"iVBORw0KGgo=\"");
        for line in fixtures.lines().chain([LOST_CALL]) {
            let mut count = 0;
            let mut fixture = Object::from_raw(&RawJson::from_text(line).unwrap()).unwrap();
            fixture.set("parentId", &None::<EntryId>);
            let raw = add_unknown_member(&fixture.into_raw(), &value, &mut count);
            for (header, write) in [
                (turnwheel_header(&header()), turnwheel_line as fn(&Entry) -> String),
                (pi_header(&header()), pi_line),
            ] {
                let entry: Entry = raw.read().unwrap();
                let exported = write(&entry);
                prop_assert_eq!(exported.matches(&text).count(), count, "{}", exported);
                let mut reader = SessionReader::new("0a1b2c3d", Timestamp(5));
                reader.read(&Line::Bytes(header.into_bytes())).unwrap();
                let parsed = reader.read(&Line::Bytes(exported.clone().into_bytes())).unwrap();
                let [ParsedLine::Entry(imported)] = &parsed[..] else { panic!("{parsed:?}") };
                prop_assert_eq!(imported.warnings.clone(), Vec::<String>::new(), "{}", line);
                // Positions within the file are renumbered.
                prop_assert_eq!(write(&imported.entry).matches(&text).count(), count, "{}", line);
            }
        }
    }
}
