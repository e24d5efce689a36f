//! Tests of files with templates and skills.

use super::*;

/// A project with these files.
struct Project {
    root: tempfile::TempDir,
}

impl Project {
    fn new(files: &[(&str, &str)]) -> Self {
        let project = Self { root: tempfile::tempdir().unwrap() };
        for (path, text) in files {
            project.write(path, text);
        }
        project
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn path(&self, name: &str) -> ResourcePath {
        let path = self.root.path().join(name);
        ResourcePath {
            path,
            display: name.to_owned(),
            location: name.to_owned(),
            is_required: false,
        }
    }

    fn paths(&self) -> ResourcePaths {
        ResourcePaths {
            templates: vec![self.path("prompts")],
            skills: vec![self.path("skills")],
            context_files: vec![self.path("context")],
        }
    }

    fn load(&self) -> Resources {
        Resources::load(&self.paths(), &Resources::default())
    }
}

fn lines(mistakes: &[Mistake]) -> Vec<String> {
    mistakes.iter().map(ToString::to_string).collect()
}

#[test]
fn templates_have_their_description_from_front_matter_or_first_line() {
    let project = Project::new(&[
        (
            "prompts/review.md",
            "---\ndescription: Reviews.\nargument-hint: <file>\n---\nReview $1.\n",
        ),
        ("prompts/plain.md", "\nWrite a poem.\nAbout $@."),
        ("prompts/.hidden.md", "no"),
        ("prompts/notes.txt", "no"),
    ]);
    let Resources { templates, mistakes, warnings, .. } = project.load();
    assert_eq!((mistakes, warnings), (Vec::new(), Vec::new()));
    let found: Vec<(&str, &str, &str)> = templates
        .values()
        .map(|it| (it.name.as_str(), it.description.as_str(), it.location.as_str()))
        .collect();
    let plain = ("plain", "Write a poem.", "prompts/plain.md");
    assert_eq!(found, [plain, ("review", "Reviews.", "prompts/review.md")]);
    assert_eq!(templates["review"].body, "Review $1.");
    assert_eq!(templates["review"].argument_hint.as_deref(), Some("<file>"));
}

/// Keys of agents are words of prompts, too.
#[test]
fn template_may_begin_with_keys_of_agents() {
    let texts = ["title: $1", "memory: $1\n\nmodel: $2", "# Report\ntools: $2", "name: $1"];
    for text in texts {
        let Resources { templates, mistakes, .. } = Project::new(&[("prompts/p.md", text)]).load();
        assert_eq!(lines(&mistakes), Vec::<String>::new(), "{text}");
        assert_eq!(templates["p"].body, text);
    }
    let unfenced = Project::new(&[
        ("prompts/p.md", "description: Reviews.\n---\nReview $1."),
        ("skills/s/SKILL.md", "name: s\ndescription: Reviews.\n---\nReview."),
    ]);
    let mistakes = lines(&unfenced.load().mistakes);
    assert_eq!(mistakes.len(), 2, "{mistakes:?}");
    for (mistake, key) in mistakes.iter().zip(["description", "name"]) {
        assert!(mistake.contains(&format!("`{key}:` looks like front matter")), "{mistake}");
    }
}

#[test]
fn skills_are_found_in_both_shapes() {
    let project = Project::new(&[
        (
            "skills/review/SKILL.md",
            "---\nname: review\ndescription: Reviews code.\ntools: [grep]\nlicense: MIT\n---\n# Do\n",
        ),
        ("skills/review/inner/SKILL.md", "---\ndescription: Part of review.\n---\n"),
        ("skills/group/deep/SKILL.md", "---\ndescription: Deep.\n---\nDig.\n"),
        (
            "skills/poem.skill.md",
            "---\ndescription: Writes.\ndisable-model-invocation: true\n---\nRhyme.\n",
        ),
        ("skills/README.md", "no"),
        ("skills/node_modules/x/SKILL.md", "no"),
    ]);
    let Resources { skills, mistakes, warnings, .. } = project.load();
    assert_eq!((mistakes, warnings), (Vec::new(), Vec::new()));
    let names: Vec<&str> = skills.iter().map(|skill| skill.name.as_str()).collect();
    assert_eq!(names, ["deep", "poem", "review"]);
    assert!(skills[1].is_hidden && skills[1].folder.is_none());
    assert_eq!(skills[2].tools, ["grep"]);
    assert_eq!(
        (skills[2].body.as_str(), skills[2].location.as_str()),
        ("# Do", "skills/review/SKILL.md")
    );
    assert_eq!(skills[2].folder.as_deref(), Some(&*project.root.path().join("skills/review")));
}

#[test]
fn broken_file_is_reported_with_its_line() {
    let project = Project::new(&[
        ("prompts/bad name.md", "Text"),
        ("prompts/list.md", "---\n- a\n---\nText"),
        ("skills/a/SKILL.md", "No front matter"),
        ("skills/b/SKILL.md", "---\ndescription: b\ntools: grep\n---\nText"),
        ("skills/c/SKILL.md", "---\nname: c\ndescription: [\n---\nText"),
        ("skills/d/SKILL.md", "---\ndescription: d\n"),
        ("skills/e/SKILL.md", &format!("---\ndescription: e\n---\n{}", "x".repeat(256 * 1024))),
    ]);
    let Resources { templates, skills, mistakes, .. } = project.load();
    assert!(templates.is_empty() && skills.is_empty());
    let mistakes = lines(&mistakes);
    let begins = [
        "prompts/bad name.md:1: a template's name, the file name before `.md`, is 1 to 64 of",
        "prompts/list.md:2: the front matter is a map of keys and values, not a list",
        "skills/a/SKILL.md:1: the skill has no `description`",
        "skills/b/SKILL.md:3: `tools` is a list of at least one tool name",
        "skills/c/SKILL.md:3: this is not YAML",
        "skills/d/SKILL.md:1: the front matter is not closed",
        "skills/e/SKILL.md:1: the file is larger than 262144 bytes",
    ];
    assert_eq!(mistakes.len(), begins.len(), "{mistakes:#?}");
    for (mistake, begin) in mistakes.iter().zip(begins) {
        assert!(mistake.starts_with(begin), "{mistake}");
    }
}

#[test]
fn broken_rules_and_repeated_names_are_warnings() {
    let skill = |name: &str| format!("---\nname: {name}\ndescription: d\n---\nText");
    let long = format!("---\ndescription: {}\n---\nText", "d".repeat(1_025));
    let project = Project::new(&[
        ("skills/a/SKILL.md", &skill("b--B")),
        ("skills/b/SKILL.md", &skill("b--B")),
        ("skills/long.skill.md", &long),
    ]);
    let Resources { skills, mistakes, warnings, .. } = project.load();
    assert_eq!(mistakes, []);
    let found: Vec<&str> = skills.iter().map(|skill| skill.location.as_str()).collect();
    assert_eq!(found, ["skills/a/SKILL.md", "skills/long.skill.md"]);
    let rules = |file: &str, path: &str| {
        [
            format!("{file}:1: the name `b--B` differs from `{path}` in its path"),
            format!("{file}:1: the name `b--B` has other characters than a-z, 0-9 and -"),
            format!("{file}:1: the name `b--B` begins or ends with -, or has two together"),
        ]
    };
    let mut expected = rules("skills/a/SKILL.md", "a").to_vec();
    expected.extend(rules("skills/b/SKILL.md", "b"));
    expected.push(
        "skills/b/SKILL.md:1: the skill `b--B` is also in skills/a/SKILL.md: this one is not used"
            .to_owned(),
    );
    expected
        .push("skills/long.skill.md:1: the description has more than 1024 characters".to_owned());
    assert_eq!(lines(&warnings), expected);
}

#[test]
fn file_with_mistake_keeps_its_earlier_revision() {
    let project = Project::new(&[
        ("prompts/p.md", "One $1"),
        ("skills/s.skill.md", "---\ndescription: d\n---\nOne"),
    ]);
    let earlier = project.load();
    project.write("prompts/p.md", "---\n- x\n---\nTwo");
    project.write("skills/s.skill.md", "Two");
    let after = Resources::load(&project.paths(), &earlier);
    assert_eq!((after.mistakes.len(), after.skills.len()), (2, 1));
    assert_eq!((&*after.templates["p"].body, &*after.skills[0].body), ("One $1", "One"));
    std::fs::remove_file(project.root.path().join("prompts/p.md")).unwrap();
    assert!(Resources::load(&project.paths(), &after).templates.is_empty());
}

#[test]
fn path_of_an_extension_may_be_a_file_and_must_exist() {
    let project =
        Project::new(&[("more/x.md", "X"), ("skills/a.skill.md", "---\ndescription: a\n---\n")]);
    let required = |name: &str| ResourcePath { is_required: true, ..project.path(name) };
    let paths = ResourcePaths {
        templates: vec![required("more/x.md"), required("gone")],
        skills: vec![required("skills/a.skill.md")],
        ..ResourcePaths::default()
    };
    let found = Resources::load(&paths, &Resources::default());
    assert_eq!(found.templates["x"].location, "more/x.md");
    assert_eq!(found.skills[0].name, "a");
    assert!(lines(&found.mistakes)[0].starts_with("gone:1: the path cannot be read: "));
    assert_eq!(list_resource_files(&paths).len(), 2);
}

#[cfg(unix)]
#[test]
fn link_out_of_the_folder_is_a_mistake() {
    let project = Project::new(&[("secret.md", "hush"), ("prompts/p.md", "P")]);
    let link = project.root.path().join("prompts/s.md");
    std::os::unix::fs::symlink(project.root.path().join("secret.md"), link).unwrap();
    let found = project.load();
    assert_eq!(found.templates.len(), 1);
    let expected = "prompts/s.md:1: the file is a link to a target outside of the folder";
    assert!(lines(&found.mistakes)[0].starts_with(expected));
}

#[test]
fn locations_never_name_folders_of_the_machine() {
    let project = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let location = |display: &Path| {
        let path = ResourcePath::new(project.path(), display, false);
        path.file_path(Path::new("a/SKILL.md")).location
    };
    assert_eq!(location(Path::new("skills")), "skills/a/SKILL.md");
    assert_eq!(location(Path::new("more/skills")), "more/skills/a/SKILL.md");
    assert_eq!(location(&project.path().join("config/skills")), "config/skills/a/SKILL.md");
    assert_eq!(location(&elsewhere.path().join("skills")), "skills/a/SKILL.md");
    // An embedded agent has no folder of its project.
    let path = ResourcePath::new(Path::new(""), &elsewhere.path().join("skills"), true);
    assert_eq!(path.file_path(Path::new("b.skill.md")).location, "skills/b.skill.md");
    assert!(path.file_path(Path::new("b.skill.md")).display.starts_with('/'));
}
