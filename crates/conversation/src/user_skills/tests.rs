//! Tests of the skills of a user: their list in the system prompt and their instructions.

use super::*;

fn skill(name: &str, description: &str) -> UserSkill {
    UserSkill {
        schema: 1,
        name: name.to_owned(),
        description: description.to_owned(),
        tools: Vec::new(),
        body: "Do it.".to_owned(),
        at: Timestamp(1),
        by: NoteAuthor::User,
        effect_id: None,
        conversation_id: None,
        extra: Extra::new(),
    }
}

fn list(skills: &[UserSkill]) -> SkillList {
    let mut list = SkillList::default();
    for skill in skills {
        list.put(skill);
    }
    list
}

#[test]
fn list_has_one_line_per_skill_and_respects_its_bound() {
    let skills = list(&[skill("a", "About a."), skill("b", "About b."), skill("c", "About c.")]);
    let three: Vec<&ListedSkill> = skills.items.iter().collect();
    let rest = |count: usize| format!("{count} more.\n");
    let lines = |skills: &[&ListedSkill], bound: usize| {
        let lines = UserSkillLines::new(skills, bound, rest);
        (lines.text, lines.unlisted)
    };
    let (all, unlisted) = lines(&three, 1_000);
    assert_eq!(unlisted, 0);
    assert_eq!(all, format!("{HEADING}- a: About a.\n- b: About b.\n- c: About c.\n"));
    let bound = all.len() - 1 + rest(1).len();
    let (cut, unlisted) = lines(&three, bound);
    assert_eq!(cut, format!("{HEADING}- a: About a.\n- b: About b.\n1 more.\n"));
    assert!(cut.len() <= bound && unlisted == 1);
    assert_eq!(lines(&three, 10), (String::new(), 3));
    assert_eq!(lines(&[], 1_000), (String::new(), 0));
}

#[test]
fn put_replaces_the_skill_of_a_name() {
    let mut skills = list(&[skill("a", "old"), skill("b", "other")]);
    skills.put(&UserSkill { tools: vec!["read".to_owned()], ..skill("a", "new") });
    let names: Vec<_> = skills.items.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let changed = skills.find("a").unwrap();
    assert_eq!(
        (changed.description.as_str(), &changed.tools[..]),
        ("new", &["read".to_owned()][..])
    );
    assert_eq!(skills.find("c"), None);
}

#[test]
fn instructions_hide_nothing() {
    for (given, expected) in [
        ("  \n# Steps\r\n1. Look.\n\tTab\n\n", "# Steps\n1. Look.\n\tTab"),
        ("👩\u{200d}💻 می\u{200c}خواهم", "👩\u{200d}💻 می\u{200c}خواهم"),
    ] {
        assert_eq!(check_instructions(given).as_deref(), Ok(expected));
    }
    assert!(check_instructions(" \n ").unwrap_err().contains("needs instructions"));
    for hidden in ['\u{0}', '\u{1b}', '\r', '\u{202e}', '\u{200b}', '\u{e0041}', '\u{feff}'] {
        let reason = check_instructions(&format!("a{hidden}b")).unwrap_err();
        assert!(reason.contains("invisible character \\u{"), "{reason}");
    }
    assert!(check_instructions(&"x".repeat(SKILL_BODY_BYTES_MAX)).is_ok());
    let reason = check_instructions(&"x".repeat(SKILL_BODY_BYTES_MAX + 1)).unwrap_err();
    assert!(reason.contains("at most 32768 are allowed"), "{reason}");
}

#[test]
fn stored_skills_keep_unknown_members() {
    let text = r#"{"schema":1,"items":[{"name":"a","description":"d","tools":["read"],"ttl":25122920421210000012345.10}],"version":25122920421210000012345.10}"#;
    let stored: SkillList = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&stored).unwrap(), text);
    let text = r#"{"schema":1,"name":"a","description":"d","body":"b","at":5,"by":"agent","conversationId":"c","ttl":25122920421210000012345.10}"#;
    let stored: UserSkill = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&stored).unwrap(), text);
}
