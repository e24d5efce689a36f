//! Loader of the prompt templates, skills and context files of an app: files of folders beside the
//! agent files, and of paths that extensions name.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::context_file::ContextFile;
use crate::fields;
use crate::front_matter::{FileKind, parse_yaml, split_front_matter};
use crate::mistakes::{Findings, Mistake};
use crate::prompt_template::{PromptTemplate, describe_by_first_line};
use crate::skills::{SKILL_FILES_MAX, Skill, find_skill_files};
use crate::text_file::read_text_file;
use crate::yaml::{Node, Position, Yaml};
use turnwheel_platform::text_encoding::skip_byte_order_mark;
use turnwheel_tools::workspace::PackageFile;

mod skill_rules;
#[cfg(test)]
mod tests;

use skill_rules::find_broken_rules;
pub use skill_rules::find_broken_skill_rules;

/// Bytes of the file of a template or a skill, and of a context file.
const FILE_BYTES_MAX: u64 = 256 * 1024;
/// Depth of folders in a folder of skills.
const DEPTH_MAX: usize = 8;
const NAME_CHARS_MAX: usize = 64;
const SKILL_FILE: &str = "SKILL.md";
const SKILL_SUFFIX: &str = ".skill.md";

/// A folder, or one file, with templates or skills.
#[derive(Clone, Debug)]
pub struct ResourcePath {
    pub path: PathBuf,
    /// Path in messages for operators.
    pub display: String,
    /// Path for users and the model, which read no paths of the machine.
    pub location: String,
    /// True if a missing path is reported.
    pub is_required: bool,
}

impl ResourcePath {
    /// A path that was configured as `display`, below `root` if it is relative.
    pub fn new(root: &Path, display: &Path, is_required: bool) -> Self {
        let location = if display.is_absolute() {
            let below = display.strip_prefix(root).ok().filter(|path| path.is_relative());
            below.or_else(|| display.file_name().map(Path::new)).unwrap_or(Path::new(""))
        } else {
            display
        };
        Self {
            path: root.join(display),
            display: display.display().to_string(),
            location: location.display().to_string(),
            is_required,
        }
    }

    /// The paths of a file of this folder, with `/` on every platform, or of this file.
    fn file_path(&self, file: &Path) -> FilePath {
        let below = |folder: &str| {
            if self.path.is_file() {
                return folder.to_owned();
            }
            let parts = file.components().map(|part| part.as_os_str().to_string_lossy());
            let parts: Vec<_> = std::iter::once(folder.into()).chain(parts).collect();
            parts.join("/")
        };
        FilePath { display: below(&self.display), location: below(&self.location) }
    }
}

/// The paths of a file, as in [`ResourcePath`].
struct FilePath {
    display: String,
    location: String,
}

/// Where the templates, skills and context files of an app are. The first of a name counts.
#[derive(Clone, Debug, Default)]
pub struct ResourcePaths {
    pub templates: Vec<ResourcePath>,
    pub skills: Vec<ResourcePath>,
    pub context_files: Vec<ResourcePath>,
}

/// The prompt templates, skills and context files of an app.
#[derive(Debug, Default)]
pub struct Resources {
    /// By name.
    pub templates: BTreeMap<String, Arc<PromptTemplate>>,
    /// In the order of the paths; names are unique.
    pub skills: Vec<Arc<Skill>>,
    /// In the order of the paths; locations are unique.
    pub context_files: Vec<Arc<ContextFile>>,
    /// A file with a mistake is left out.
    pub mistakes: Vec<Mistake>,
    /// Files that are used although they break a rule, and files that another one hides.
    pub warnings: Vec<Mistake>,
}

/// A file below a path of resources.
struct ListedFile {
    /// Its folder or one above it.
    folder: PathBuf,
    /// From there.
    path: PathBuf,
}

/// A file with its parsed front matter.
struct ParsedFile<'t> {
    location: &'t str,
    file: &'t ListedFile,
    node: Node,
    body: &'t str,
}

impl ParsedFile<'_> {
    fn read_text(&self, key: &str, findings: &mut Findings) -> Option<String> {
        let member = self.node.find_member(key)?;
        fields::read_text(member, findings).map(str::to_owned)
    }
}

impl Resources {
    /// A file with a mistake keeps its revision of `earlier`.
    pub fn load(paths: &ResourcePaths, earlier: &Self) -> Self {
        let mut resources = Self::default();
        for path in &paths.templates {
            for file in resources.find_files(path, list_markdown) {
                resources.add_template(&path.file_path(&file.path), &file, earlier);
            }
        }
        for path in &paths.skills {
            for file in resources.find_files(path, list_skills) {
                resources.add_skill(&path.file_path(&file.path), &file, earlier);
            }
        }
        for path in &paths.context_files {
            for file in resources.find_files(path, list_markdown) {
                resources.add_context_file(&path.file_path(&file.path), &file, earlier);
            }
        }
        resources
    }

    /// The files of a path.
    fn find_files(
        &mut self,
        path: &ResourcePath,
        list: impl Fn(&Path) -> io::Result<Vec<PathBuf>>,
    ) -> Vec<ListedFile> {
        if path.path.is_file() {
            let folder = path.path.parent().map(Path::to_owned).unwrap_or_default();
            let path = path.path.file_name().map(PathBuf::from).unwrap_or_default();
            return vec![ListedFile { folder, path }];
        }
        match list(&path.path) {
            Ok(files) => files
                .into_iter()
                .map(|file| ListedFile { folder: path.path.clone(), path: file })
                .collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_required => {
                Vec::new()
            }
            Err(error) => {
                let mut findings = Findings::new(path.display.clone());
                findings.add(Position::START, format!("the path cannot be read: {error}"));
                self.mistakes.extend(findings.into_sorted());
                Vec::new()
            }
        }
    }

    fn add_template(&mut self, path: &FilePath, file: &ListedFile, earlier: &Self) {
        let template = self.read(path, file, FileKind::Template, parse_template);
        let template = template.map(Arc::new).or_else(|| {
            let mut all = earlier.templates.values();
            all.find(|template| template.location == path.location).cloned()
        });
        let Some(template) = template else { return };
        if let Some(first) = self.templates.get(&template.name) {
            let (name, first) = (&template.name, &first.location);
            let reason = format!("the template `{name}` is also in {first}: this one is not used");
            self.warn(&path.display, reason);
        } else {
            self.templates.insert(template.name.clone(), template);
        }
    }

    fn add_skill(&mut self, path: &FilePath, file: &ListedFile, earlier: &Self) {
        let skill = self.read(path, file, FileKind::Skill, parse_skill);
        let skill = skill.map(|skill| Arc::new(Skill { files: files_of(file), ..skill }));
        let skill = skill.or_else(|| {
            let mut all = earlier.skills.iter();
            all.find(|skill| skill.location == path.location).cloned()
        });
        let Some(skill) = skill else { return };
        if skill.files.len() >= SKILL_FILES_MAX {
            let reason = format!("only {SKILL_FILES_MAX} files of the skill can be read by tools");
            self.warn(&path.display, reason);
        }
        for broken_rule in
            find_broken_rules(&skill.name, &skill.description, &implied_skill_name(file))
        {
            self.warn(&path.display, broken_rule);
        }
        if let Some(first) = self.skills.iter().find(|first| first.name == skill.name) {
            let (name, first) = (&skill.name, &first.location);
            let reason = format!("the skill `{name}` is also in {first}: this one is not used");
            self.warn(&path.display, reason);
        } else {
            self.skills.push(skill);
        }
    }

    fn add_context_file(&mut self, path: &FilePath, file: &ListedFile, earlier: &Self) {
        let FilePath { display, location } = path;
        let text = read_text_file(&file.folder, &file.path, FILE_BYTES_MAX);
        let context_file = match text {
            Ok(text) => {
                let text = skip_byte_order_mark(&text).trim().to_owned();
                Some(Arc::new(ContextFile { location: location.clone(), text }))
            }
            Err(reason) => {
                let mut findings = Findings::new(display.clone());
                findings.add(Position::START, reason);
                self.mistakes.extend(findings.into_sorted());
                earlier.context_files.iter().find(|file| file.location == *location).cloned()
            }
        };
        self.context_files.extend(context_file);
    }

    /// Reads a file. `None`: it has a mistake, which is recorded.
    fn read<T>(
        &mut self,
        path: &FilePath,
        file: &ListedFile,
        kind: FileKind,
        parse: impl FnOnce(&ParsedFile<'_>, &mut Findings) -> T,
    ) -> Option<T> {
        let mut findings = Findings::new(path.display.clone());
        let text = read_text_file(&file.folder, &file.path, FILE_BYTES_MAX);
        let text = text.map_err(|reason| findings.add(Position::START, reason)).ok();
        let parsed = text.and_then(|text| {
            let text = skip_byte_order_mark(&text);
            let (node, body) = parse_front_matter(text, kind, &mut findings)?;
            let location = path.location.as_str();
            let parsed = ParsedFile { location, file, node, body };
            Some(parse(&parsed, &mut findings))
        });
        let is_correct = findings.is_empty();
        self.mistakes.extend(findings.into_sorted());
        parsed.filter(|_| is_correct)
    }

    fn warn(&mut self, file: &str, reason: String) {
        let mut findings = Findings::new(file);
        findings.add(Position::START, reason);
        self.warnings.extend(findings.into_sorted());
    }
}

/// The name that the path of a skill implies: that of its folder, or the file name before
/// `.skill.md`.
fn implied_skill_name(file: &ListedFile) -> String {
    let file_name = file.path.file_name().unwrap_or_default().to_string_lossy();
    if let Some(name) = file_name.strip_suffix(SKILL_SUFFIX) {
        return name.to_owned();
    }
    let path = file.folder.join(&file.path);
    let parent = path.parent().and_then(Path::file_name).unwrap_or_default();
    parent.to_string_lossy().into_owned()
}

/// The files of the skill whose own file this is.
fn files_of(file: &ListedFile) -> Vec<(String, PackageFile)> {
    let own_file = file.folder.join(&file.path);
    let own_folder = own_file.parent().unwrap_or(&file.folder);
    let own_name = Path::new(own_file.file_name().unwrap_or_default());
    find_skill_files(own_folder, own_name, file.path.ends_with(SKILL_FILE))
}

fn parse_front_matter<'t>(
    text: &'t str,
    kind: FileKind,
    findings: &mut Findings,
) -> Option<(Node, &'t str)> {
    let (front_matter, body) = split_front_matter(text, kind, findings)?;
    let node = parse_yaml(front_matter, findings)?;
    if !matches!(node.yaml, Yaml::Map(_) | Yaml::Null) {
        let reason = format!("the front matter is a map of keys and values, not {}", node.kind());
        findings.add(node.position, reason);
        return None;
    }
    Some((node, body.trim()))
}

fn parse_template(parsed: &ParsedFile<'_>, findings: &mut Findings) -> PromptTemplate {
    let name = parsed.file.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if !(1..=NAME_CHARS_MAX).contains(&name.len()) || !name.bytes().all(is_allowed) {
        let reason =
            "a template's name, the file name before `.md`, is 1 to 64 of a-z A-Z 0-9 _ . -";
        findings.add(Position::START, reason);
    }
    let description = parsed.read_text("description", findings);
    PromptTemplate {
        name,
        description: description.unwrap_or_else(|| describe_by_first_line(parsed.body)),
        argument_hint: parsed.read_text("argument-hint", findings),
        location: parsed.location.to_owned(),
        body: parsed.body.to_owned(),
    }
}

/// Other keys belong to other programs that read the same file.
fn parse_skill(parsed: &ParsedFile<'_>, findings: &mut Findings) -> Skill {
    let node = &parsed.node;
    let ListedFile { folder, path } = parsed.file;
    let description = parsed.read_text("description", findings).unwrap_or_default();
    if description.trim().is_empty() {
        let reason = "the skill has no `description`: the model chooses skills by it";
        findings.add(node.position, reason);
    }
    let hidden = node.find_member("disable-model-invocation");
    let is_hidden = hidden.and_then(|member| fields::read_bool(member, findings));
    let tools = node.find_member("tools").map(|member| {
        let names = fields::read_texts(member, "a list of at least one tool name", findings);
        names.into_iter().map(|(name, _)| name.to_owned()).collect()
    });
    let own_folder = folder.join(path).parent().map(Path::to_owned);
    Skill {
        name: parsed.read_text("name", findings).unwrap_or(implied_skill_name(parsed.file)),
        description: description.trim().to_owned(),
        location: parsed.location.to_owned(),
        folder: own_folder.filter(|_| path.ends_with(SKILL_FILE)),
        files: Vec::new(),
        tools: tools.unwrap_or_default(),
        is_hidden: is_hidden.unwrap_or_default(),
        body: parsed.body.to_owned(),
    }
}

/// Parses the text of the skill file of this name, which is not a file of the app.
///
/// # Errors
/// The mistakes in the text, each with its line.
pub fn parse_skill_text(name: &str, text: &str) -> Result<Skill, Vec<String>> {
    let location = format!("{name}{SKILL_SUFFIX}");
    let mut findings = Findings::new(location.as_str());
    let text = skip_byte_order_mark(text);
    let skill = parse_front_matter(text, FileKind::Skill, &mut findings).map(|(node, body)| {
        let file = ListedFile { folder: PathBuf::new(), path: PathBuf::from(&location) };
        parse_skill(&ParsedFile { location: &location, file: &file, node, body }, &mut findings)
    });
    let mistakes: Vec<String> = findings
        .into_sorted()
        .iter()
        .map(|it| format!("line {}: {}", it.line, it.reason))
        .collect();
    skill.filter(|_| mistakes.is_empty()).ok_or(mistakes)
}

/// The `*.md` files of the folder, sorted.
fn list_markdown(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let names = list_names(folder)?.into_iter().map(PathBuf::from);
    Ok(names.filter(|name| name.extension().is_some_and(|suffix| suffix == "md")).collect())
}

/// The skill files below the folder, sorted. A folder with `SKILL.md` is one skill: its other files
/// belong to it.
fn list_skills(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    add_skills(folder, Path::new(""), DEPTH_MAX, &mut found)?;
    Ok(found)
}

fn add_skills(
    root: &Path,
    below: &Path,
    depth_left: usize,
    found: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let names = list_names(&root.join(below))?;
    if names.iter().any(|name| name == SKILL_FILE) {
        found.push(below.join(SKILL_FILE));
        return Ok(());
    }
    for name in names {
        let path = below.join(&name);
        if name.ends_with(SKILL_SUFFIX) {
            found.push(path);
        } else if depth_left > 0 && name != "node_modules" && root.join(&path).is_dir() {
            add_skills(root, &path, depth_left - 1, found)?;
        }
    }
    Ok(())
}

/// The names in a folder, sorted, without hidden ones.
fn list_names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The files of all skills below the folder.
fn list_skill_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let skills = list_skills(folder)?;
    let files = skills
        .into_iter()
        .flat_map(|path| files_of(&ListedFile { folder: folder.to_owned(), path }));
    Ok(files.map(|(_, file)| file.folder.join(file.path)).collect())
}

/// All files below the paths, for the detection of changes.
pub fn list_resource_files(paths: &ResourcePaths) -> Vec<PathBuf> {
    let markdown = paths.templates.iter().chain(&paths.context_files);
    let markdown = markdown.map(|path| (path, list_markdown as fn(&Path) -> _));
    let skills = paths.skills.iter().map(|path| (path, list_skill_files as fn(&Path) -> _));
    let mut files = Vec::new();
    for (path, list) in markdown.chain(skills) {
        if path.path.is_file() {
            files.push(path.path.clone());
        } else {
            let listed: io::Result<Vec<PathBuf>> = list(&path.path);
            files.extend(listed.into_iter().flatten().map(|file| path.path.join(file)));
        }
    }
    files
}
