//! `turnwheel new`: a folder with an agent to start from.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use clap::ValueEnum;
use rust_embed::Embed;

use crate::package;
use crate::start::start_error::{StartError, io_error};

/// In the files of a template: the name of the folder.
const NAME: &str = "PROJECT_NAME";
/// Files of every template.
const COMMON: &str = "common/";
const NAME_CHARS_MAX: usize = 64;

#[derive(Embed)]
#[folder = "templates"]
struct TemplateFiles;

/// The agent of the README.
const PAYMENTS: [(&str, &str); 2] = [
    ("agents/payments-clerk.agent.md", include_str!("../../agents/payments-clerk.agent.md")),
    (
        "agents/payments-clerk.certify.yaml",
        include_str!("../../agents/payments-clerk.certify.yaml"),
    ),
];
/// The programs with tools, which are examples, too.
const PYTHON_TOOLS: [(&str, &str); 2] = [
    ("requirements.txt", include_str!("../../examples/tools-python/requirements.txt")),
    ("tools.py", include_str!("../../examples/tools-python/tools.py")),
];
const TYPESCRIPT_TOOLS: [(&str, &str); 1] =
    [("tools.mjs", include_str!("../../examples/tools-typescript/tools.mjs"))];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProjectTemplate {
    /// An assistant with files and memory.
    Chat,
    /// Status and restart of services over HTTP.
    Ops,
    /// Payments that wait for an approval.
    Approval,
    /// Functions in Python as tools.
    PythonTools,
    /// Functions in TypeScript as tools.
    TypescriptTools,
    /// An app with a tool in Rust.
    Rust,
}

/// A file of the new folder, by its path there.
type NewFile = (String, Cow<'static, [u8]>);

impl ProjectTemplate {
    fn files(self) -> Vec<NewFile> {
        let own = match self {
            Self::Chat => read_below("chat/"),
            Self::Ops => read_below("ops/"),
            Self::Approval => with_files("approval/", &PAYMENTS),
            Self::PythonTools => with_files("python-tools/", &PYTHON_TOOLS),
            Self::TypescriptTools => with_files("typescript-tools/", &TYPESCRIPT_TOOLS),
            Self::Rust => read_below("rust/"),
        };
        let common = read_below(COMMON).into_iter();
        common
            .filter(|(path, _)| !own.iter().any(|(other, _)| other == path))
            .chain(own.clone())
            .collect()
    }

    /// The commands that start the new app.
    fn next_steps(self) -> &'static [&'static str] {
        match self {
            Self::Chat | Self::Approval => &["turnwheel dev"],
            Self::Ops => &["node server.mjs &", "turnwheel dev"],
            Self::PythonTools => &["pip install -r requirements.txt", "turnwheel dev"],
            Self::TypescriptTools => &["npm install", "turnwheel dev"],
            Self::Rust => &["cargo run -- dev"],
        }
    }
}

/// The files of a template, and others.
fn with_files(template: &str, others: &[(&str, &'static str)]) -> Vec<NewFile> {
    let mut files = read_below(template);
    files.extend(others.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().into())));
    files
}

/// The files below a folder. A name that begins with `dot-` is that of a hidden file, and `.template`
/// at its end keeps other programs from reading the file where it is.
fn read_below(folder: &str) -> Vec<NewFile> {
    let mut files: Vec<NewFile> = TemplateFiles::iter()
        .filter_map(|path| {
            let name = path.strip_prefix(folder)?.replace("dot-", ".");
            let name = name.strip_suffix(".template").unwrap_or(&name).to_owned();
            Some((name, TemplateFiles::get(&path)?.data))
        })
        .collect();
    files.sort_by(|one, other| one.0.cmp(&other.0));
    files
}

/// Creates the folder. Returns the text for its user.
///
/// # Errors
/// The folder exists with content, its name gives no name of a project, or it cannot be written to.
pub(crate) fn create(folder: &Path, template: ProjectTemplate) -> Result<String, StartError> {
    let name = project_name(folder)?;
    let is_used = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if is_used || folder.is_file() {
        let shown = folder.display();
        return Err(StartError::Arguments(format!("{shown} is not empty: name a new folder")));
    }
    let mut paths = Vec::new();
    for (path, content) in template.files() {
        let file = folder.join(&path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).map_err(io_error("create the folder"))?;
        }
        let text = String::from_utf8_lossy(&content).replace(NAME, &name);
        fs::write(&file, text).map_err(io_error("write a file of the template"))?;
        paths.push(path);
    }
    package::write_azd_files(folder).map_err(io_error("write azure.yaml and infra"))?;
    let shown = folder.display().to_string();
    let named = if folder.ends_with(&name) { "" } else { &format!(", project `{name}`") };
    let quote = if shown.contains(char::is_whitespace) { "\"" } else { "" };
    Ok(format!(
        "Created {shown}{named}:\n  {}\n  azure.yaml, infra/\n\nNext:\n  cd {quote}{shown}{quote}\n  {}",
        paths.join("\n  "),
        template.next_steps().join("\n  ")
    ))
}

/// The last part of the path in small letters, digits and `-`, because it names packages and resources too.
fn project_name(folder: &Path) -> Result<String, StartError> {
    let written = folder.file_name().unwrap_or_default().to_string_lossy();
    let lowercase = written.to_ascii_lowercase();
    let words = lowercase.split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit());
    let name = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-");
    if name.starts_with(|c: char| c.is_ascii_lowercase()) && name.len() <= NAME_CHARS_MAX {
        return Ok(name);
    }
    Err(StartError::Arguments(format!(
        "`{written}` cannot name a project: write a-z, 0-9 and `-`, beginning with a letter, such as my-agent"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_have_an_agent_and_the_common_files() {
        for template in ProjectTemplate::value_variants() {
            let files = template.files();
            let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
            for wanted in
                [".gitignore", ".env.sample", ".github/workflows/ci.yml", "AGENTS.md", "README.md"]
            {
                assert!(paths.contains(&wanted), "{template:?}: {wanted} of {paths:?}");
            }
            assert!(
                paths.iter().any(|path| path.ends_with(".agent.md")),
                "{template:?}: {paths:?}"
            );
            assert!(paths.iter().all(|path| !path.contains("dot-")), "{template:?}: {paths:?}");
        }
    }

    #[test]
    fn name_and_folder_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["1st", "..", "-", "日本", &"x".repeat(65)] {
            let error =
                create(&folder.path().join(name), ProjectTemplate::Chat).unwrap_err().to_string();
            assert!(error.contains("cannot name a project"), "{name}: {error}");
        }
        for (written, name) in
            [("My-Agent", "my-agent"), ("app ä", "app"), ("Über_uns 2", "ber-uns-2")]
        {
            let odd = folder.path().join(written);
            let text = create(&odd, ProjectTemplate::Chat).unwrap();
            assert!(text.contains(&format!("{written}, project `{name}`:")), "{text}");
            assert!(text.contains(&format!("{written}\"\n")) == written.contains(' '), "{text}");
            let readme = fs::read_to_string(odd.join("README.md")).unwrap();
            assert!(readme.starts_with(&format!("# {name}\n")), "{readme}");
        }
        let used = folder.path().join("used");
        fs::create_dir(&used).unwrap();
        create(&used, ProjectTemplate::Chat).unwrap();
        let error = create(&used, ProjectTemplate::Chat).unwrap_err().to_string();
        assert!(error.contains("is not empty"), "{error}");
        let readme = fs::read_to_string(used.join("README.md")).unwrap();
        assert!(readme.starts_with("# used\n"), "{readme}");
    }
}
