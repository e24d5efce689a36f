//! Tests of `profile` in agent files.

use super::load_files;

#[test]
fn profile_is_off_without_its_key() {
    for (front_matter, shared) in [
        ("description: x", None),
        ("profile: false", None),
        ("profile: true", Some(false)),
        ("profile: {}", Some(false)),
        ("profile: { shared: true }", Some(true)),
    ] {
        let loaded = load_files(&[("a.agent.md", &format!("---\n{front_matter}\n---\nx"))]);
        assert_eq!(loaded.mistakes, [], "{front_matter}");
        let agent = loaded.catalog.find(None).unwrap();
        let profile = agent.profile.as_ref().map(|profile| profile.allows_shared_user);
        assert_eq!(profile, shared, "{front_matter}");
        assert_eq!(agent.plugins.len(), usize::from(shared.is_some()), "{front_matter}");
        assert_eq!(agent.learns_profile(false), shared.is_some(), "{front_matter}");
        assert_eq!(agent.learns_profile(true), shared == Some(true), "{front_matter}");
        assert_eq!(agent.reads_user_documents(false), shared.is_some(), "{front_matter}");
    }
}

#[test]
fn profile_precedes_the_memory_in_the_system_prompt() {
    let loaded = load_files(&[("a.agent.md", "---\nmemory: true\nprofile: true\n---\nx")]);
    assert_eq!(loaded.mistakes, []);
    let agent = loaded.catalog.find(None).unwrap();
    let names: Vec<&str> = agent.plugins.iter().map(|plugin| plugin.name()).collect();
    assert_eq!(names, ["profile", "memory"]);
}

#[test]
fn mistakes_in_profile_name_the_remedy() {
    for (front_matter, expected) in [
        ("profile: yes please", "`profile` is true, or a map of shared"),
        ("profile: [true]", "`profile` is true, or a map of shared"),
        ("profile: { shared: maybe }", "`shared` must be true or false"),
        ("profile: { sahred: true }", "sahred"),
        ("profile: { write: auto }", "write"),
        ("profiel: true", "profile"),
    ] {
        let loaded = load_files(&[("a.agent.md", &format!("---\n{front_matter}\n---\nx"))]);
        let [mistake] = &loaded.mistakes[..] else { panic!("{:?}", loaded.mistakes) };
        assert!(mistake.to_string().contains(expected), "{mistake}");
    }
}
