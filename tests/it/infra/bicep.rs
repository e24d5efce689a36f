//! Parsed Bicep files and their declarations, as far as values are literals.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use tree_sitter::{Node, Parser, Tree};

/// One parsed file.
pub(crate) struct Bicep {
    pub(crate) path: String,
    text: String,
    tree: Tree,
}

/// A `resource` or a `module`.
pub(crate) struct Declaration {
    pub(crate) symbol: String,
    /// The resource's type with its version, or the module's path.
    pub(crate) kind: String,
    /// A value that is no literal (calls, parameters) is its source text.
    pub(crate) body: Value,
    /// The body for type checks: a value that is no literal is null, and variables of the file are
    /// resolved.
    pub(crate) literal_body: Value,
}

/// Replacement for a value that is no literal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NonLiteral {
    Source,
    Null,
}

impl Bicep {
    pub(crate) fn parse(path: &str, text: String) -> Self {
        let mut parser = Parser::new();
        parser.set_language(&tree_sitter_bicep::LANGUAGE.into()).expect("the grammar loads");
        let tree = parser.parse(&text, None).expect("a parser without a time limit");
        Self { path: path.to_owned(), text, tree }
    }

    fn nodes(&self) -> Vec<Node<'_>> {
        let mut nodes = Vec::new();
        let mut open = vec![self.tree.root_node()];
        while let Some(node) = open.pop() {
            nodes.push(node);
            let mut cursor = node.walk();
            let mut children: Vec<_> = node.children(&mut cursor).collect();
            children.reverse();
            open.extend(children);
        }
        nodes
    }

    fn text_of(&self, node: Node<'_>) -> &str {
        self.text.get(node.byte_range()).expect("a node of this text")
    }

    /// `path:line: text` for each syntax error.
    pub(crate) fn errors(&self) -> Vec<String> {
        let is_error = |node: &Node<'_>| node.is_error() || node.is_missing();
        let describe = |node: Node<'_>| {
            let line = node.start_position().row + 1;
            let text = self.text_of(node).lines().next().unwrap_or_default();
            format!("{}:{line}: {text}", self.path)
        };
        self.nodes().into_iter().filter(is_error).map(describe).collect()
    }

    fn declarations(&self, kind: &str) -> Vec<Node<'_>> {
        self.nodes().into_iter().filter(|node| node.kind() == kind).collect()
    }

    /// The first child of a kind.
    fn child<'a>(node: Node<'a>, kind: &str) -> Option<Node<'a>> {
        let mut cursor = node.walk();
        let index = node.named_children(&mut cursor).position(|child| child.kind() == kind)?;
        node.named_child(u32::try_from(index).ok()?)
    }

    fn name_of<'a>(&'a self, node: Node<'a>) -> &'a str {
        Self::child(node, "identifier").map(|name| self.text_of(name)).unwrap_or_default()
    }

    /// `var` by name.
    pub(crate) fn variables(&self) -> BTreeMap<String, Value> {
        let value = |node: Node<'_>| {
            let last = u32::try_from(node.named_child_count()).unwrap() - 1;
            self.value(node.named_child(last).unwrap(), NonLiteral::Source)
        };
        self.declarations("variable_declaration")
            .into_iter()
            .map(|node| (self.name_of(node).to_owned(), value(node)))
            .collect()
    }

    /// `param` by name; true if a value is required.
    pub(crate) fn parameters(&self) -> BTreeMap<String, bool> {
        let is_required = |node: Node<'_>| {
            let mut cursor = node.walk();
            let has_default = node.children(&mut cursor).any(|child| child.kind() == "=");
            !has_default
        };
        self.declarations("parameter_declaration")
            .into_iter()
            .map(|node| (self.name_of(node).to_owned(), is_required(node)))
            .collect()
    }

    pub(crate) fn outputs(&self) -> BTreeSet<String> {
        let declared = self.declarations("output_declaration");
        declared.into_iter().map(|node| self.name_of(node).to_owned()).collect()
    }

    fn declarations_with_bodies(&self, kind: &str) -> Vec<Declaration> {
        let body = |node: Node<'_>, non_literal: NonLiteral| {
            let mut open = vec![node];
            while let Some(node) = open.pop() {
                if node.kind() == "object" {
                    return self.value(node, non_literal);
                }
                let mut cursor = node.walk();
                let mut inner: Vec<_> = node
                    .named_children(&mut cursor)
                    .filter(|child| {
                        ["if_statement", "for_statement", "object"].contains(&child.kind())
                    })
                    .collect();
                inner.reverse();
                open.extend(inner);
            }
            Value::Null
        };
        self.declarations(kind)
            .into_iter()
            .map(|node| Declaration {
                symbol: self.name_of(node).to_owned(),
                kind: Self::child(node, "string")
                    .map(|text| self.text_of(text).trim_matches('\'').to_owned())
                    .unwrap_or_default(),
                body: body(node, NonLiteral::Source),
                literal_body: body(node, NonLiteral::Null),
            })
            .collect()
    }

    pub(crate) fn resources(&self) -> Vec<Declaration> {
        self.declarations_with_bodies("resource_declaration")
    }

    pub(crate) fn modules(&self) -> Vec<Declaration> {
        self.declarations_with_bodies("module_declaration")
    }

    /// Every `symbol.outputs.name` of the file.
    pub(crate) fn outputs_used(&self) -> BTreeSet<(String, String)> {
        let used = regex::Regex::new(r"\b(\w+)!?\.outputs\.(\w+)").unwrap();
        used.captures_iter(&self.text)
            .map(|found| (found[1].to_owned(), found[2].to_owned()))
            .collect()
    }

    /// Names that are used and not declared in the file.
    pub(crate) fn unknown_names(&self, functions: &[&str]) -> Vec<String> {
        let mut known: BTreeSet<&str> = functions.iter().copied().collect();
        let mut used = BTreeSet::new();
        for node in self.nodes() {
            match node.kind() {
                "variable_declaration"
                | "parameter_declaration"
                | "resource_declaration"
                | "module_declaration"
                | "output_declaration"
                | "type_declaration" => {
                    known.insert(self.name_of(node));
                }
                "import_functionality" => {
                    let mut cursor = node.walk();
                    let names = node.named_children(&mut cursor);
                    known.extend(
                        names.filter(|it| it.kind() == "identifier").map(|it| self.text_of(it)),
                    );
                }
                "for_statement" | "lambda_expression" => {
                    if let Some(name) = node.named_child(0) {
                        known.insert(self.text_of(name));
                    }
                }
                "identifier" => {
                    let is_key = node.parent().is_some_and(|parent| {
                        parent.kind() == "object_property" && parent.named_child(0) == Some(node)
                    });
                    if !is_key {
                        used.insert(self.text_of(node));
                    }
                }
                _ => {}
            }
        }
        used.difference(&known).map(|name| format!("{}: {name}", self.path)).collect()
    }

    fn value(&self, node: Node<'_>, non_literal: NonLiteral) -> Value {
        let mut cursor = node.walk();
        let children: Vec<Node<'_>> = node.named_children(&mut cursor).collect();
        match node.kind() {
            "object" => {
                let mut object = Map::new();
                for property in children.iter().filter(|child| child.kind() == "object_property") {
                    let (Some(key), Some(value)) =
                        (property.named_child(0), property.named_child(1))
                    else {
                        continue;
                    };
                    let key = match key.kind() {
                        "string" => self.text_of(key).trim_matches('\'').to_owned(),
                        _ => self.text_of(key).to_owned(),
                    };
                    object.insert(key, self.value(value, non_literal));
                }
                Value::Object(object)
            }
            "array" => children
                .iter()
                .filter(|child| child.kind() != "comment")
                .map(|child| self.value(*child, non_literal))
                .collect(),
            "string" => {
                let text = self.text_of(node);
                let is_whole = non_literal == NonLiteral::Source || !text.contains("${");
                if is_whole { Value::from(text.trim_matches('\'')) } else { Value::Null }
            }
            "number" | "boolean" => serde_json::from_str(self.text_of(node)).unwrap_or(Value::Null),
            "null" => Value::Null,
            _ if non_literal == NonLiteral::Source => Value::from(self.text_of(node)),
            _ => self.resolve_variable(node),
        }
    }

    /// The variable that an expression names, or the list that it filters; else null.
    fn resolve_variable(&self, node: Node<'_>) -> Value {
        let text = self.text_of(node);
        let name = text.strip_prefix("filter(").and_then(|rest| rest.split(',').next());
        let name = name.unwrap_or(text);
        let declared = self.declarations("variable_declaration");
        let found = declared.into_iter().find(|declared| self.name_of(*declared) == name);
        let last =
            found.and_then(|node| u32::try_from(node.named_child_count()).ok()?.checked_sub(1));
        let value = last.zip(found).and_then(|(last, node)| node.named_child(last));
        // One step: a variable of a variable is not resolved.
        match value {
            Some(value) if ["object", "array", "string"].contains(&value.kind()) => {
                self.value(value, NonLiteral::Null)
            }
            _ => Value::Null,
        }
    }
}
