//! Size of a regular expression and steps of its searches, computed before it is compiled. Repetitions
//! multiply, as they do in the compiled expression.

mod syntax;

use std::collections::HashMap;

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{
    AssertionKind, Ast, ClassBracketed, ClassPerl, ClassPerlKind, ClassSet, ClassSetItem,
    Repetition, RepetitionKind, RepetitionRange,
};

use self::syntax::{has_flags, is_backtracking, plain_syntax};

/// Bytes of an expression that is read.
const TEXT_BYTES_MAX: usize = 16 * 1024;
/// States of one expression that is compiled. A state takes about 32 bytes.
const STATES_MAX: u64 = 131_072;
/// States that stand for the engines of an expression, however small it is.
const STATES_BASE: u64 = 200;
/// States that stand for the engines of a part, for each byte of an expression that goes back.
const STATES_BY_BYTE: u64 = 20;
/// States of a class of Unicode, as `\p{L}`.
const UNICODE_CLASS: u64 = 1_600;
/// States of the digits of Unicode: about 70 ranges.
const UNICODE_DIGITS: u64 = 250;
/// States of the class of all characters, or of all but a few.
const ANY_CHARACTER: u64 = 33;
/// States of a range of characters beyond ASCII.
const WIDE_RANGE: u64 = 30;
/// States of the largest class.
const CLASS_MAX: u64 = 3_200;
/// Steps of an expression that may go back in its text. Each of its searches has more.
const BACKTRACKING_STEPS: u64 = 4_000;
/// Active states up to which the engine has one step for each byte.
const FEW_ACTIVE: u64 = 24;
/// Steps for each byte of an expression that may go back. The engine gives up after some steps back.
const BACKTRACKING_BY_BYTE_MAX: u64 = 256;

/// Size of one expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PatternSize {
    /// States of the compiled expression.
    states: u64,
    /// States that may be active at one byte of a text.
    active: u64,
    is_backtracking: bool,
}

impl PatternSize {
    /// The size of an expression of a JSON Schema, in the syntax of ECMAScript.
    pub(super) fn of_schema(pattern: &str) -> Self {
        let is_backtracking = is_backtracking(pattern);
        let refused = Self { states: u64::MAX, active: u64::MAX, is_backtracking };
        if pattern.len() > TEXT_BYTES_MAX {
            return refused;
        }
        let size = match Parser::new().parse(&plain_syntax(pattern)) {
            // The validator replaces `\w` and `\d` by classes of ASCII, if nothing looks around.
            Ok(ast) => Self::of_ast(&ast, is_backtracking, has_flags(pattern)),
            // Words of the other engine, of which some call a group again and again.
            Err(_) if is_backtracking => return refused,
            Err(_) => Self::estimate(pattern),
        };
        let parts = if is_backtracking { STATES_BY_BYTE * count(pattern.len()) } else { 0 };
        let states = size.states.saturating_add(STATES_BASE).saturating_add(parts);
        Self { states, active: size.active, is_backtracking }
    }

    /// The size of an expression in the syntax of the crate `regex`.
    pub(crate) fn of_regex(pattern: &str, ignores_case: bool) -> Self {
        if pattern.len() > TEXT_BYTES_MAX {
            return Self { states: u64::MAX, active: u64::MAX, is_backtracking: false };
        }
        match Parser::new().parse(pattern) {
            Ok(ast) => Self::of_ast(&ast, true, ignores_case || has_flags(pattern)),
            Err(_) => Self::estimate(pattern),
        }
    }

    /// The size of a text without a pattern.
    pub(crate) const fn of_literal() -> Self {
        Self { states: 1, active: 1, is_backtracking: false }
    }

    fn of_ast(ast: &Ast, has_unicode_classes: bool, has_flags: bool) -> Self {
        let starts = if is_anchored(ast) && !has_flags { 1 } else { u64::MAX };
        let part = Measure { has_unicode_classes }.part(ast, starts);
        let states = part.states.saturating_mul(if has_flags { 4 } else { 1 });
        Self { states, active: part.active, is_backtracking: false }
    }

    /// The size of an expression that the parser refuses, by its text.
    fn estimate(pattern: &str) -> Self {
        const LARGE: [&str; 7] = ["\\w", "\\W", "\\S", "\\D", "\\u", "[^", "."];
        let has = |signs: &[&str]| signs.iter().any(|sign| pattern.contains(sign));
        let class = if has(&["\\p", "\\P"]) {
            UNICODE_CLASS
        } else if has(&LARGE) || !pattern.is_ascii() {
            ANY_CHARACTER
        } else {
            2
        };
        let repeated = pattern.split('{').skip(1).map(|rest| {
            let counts = rest.split('}').next().unwrap_or_default().split(',');
            counts.filter_map(|it| it.trim().parse::<u64>().ok()).max().unwrap_or_default().max(1)
        });
        let states = repeated.fold(class, u64::saturating_mul);
        let states = states.saturating_mul(count(pattern.len()));
        Self { states, active: states, is_backtracking: false }
    }

    /// False if the expression is too large to be compiled.
    pub(super) fn is_compilable(&self) -> bool {
        self.states <= STATES_MAX
    }

    /// Steps of a search in a text of that many bytes, of about a tenth of a microsecond.
    pub(crate) fn match_steps(&self, bytes: usize) -> u64 {
        let bytes = count(bytes);
        let search = (bytes / 32 + 1).saturating_mul(self.active.saturating_add(1));
        let search = search.saturating_add(self.states / 1024);
        if !self.is_backtracking {
            return search;
        }
        // It may read the text again for each step back.
        let by_byte = if self.active <= FEW_ACTIVE { 8 } else { BACKTRACKING_BY_BYTE_MAX };
        search.saturating_add(BACKTRACKING_STEPS).saturating_add(bytes.saturating_mul(by_byte))
    }
}

/// Sizes of the regular expressions of one schema.
#[derive(Debug, Default)]
pub(super) struct PatternSizes(HashMap<String, PatternSize>);

impl PatternSizes {
    pub(super) fn new<'p>(patterns: impl Iterator<Item = &'p str>) -> Self {
        Self(patterns.map(|it| (it.to_owned(), PatternSize::of_schema(it))).collect())
    }

    fn get(&self, pattern: &str) -> PatternSize {
        self.0.get(pattern).copied().unwrap_or_else(|| PatternSize::of_schema(pattern))
    }

    /// States of all expressions that are compiled.
    pub(super) fn states(&self) -> u64 {
        let compilable = self.0.values().filter(|size| size.is_compilable());
        compilable.map(|size| size.states).fold(0, u64::saturating_add)
    }

    pub(super) fn states_of(&self, pattern: &str) -> u64 {
        self.get(pattern).states
    }

    /// The first expression that is too large to be compiled.
    pub(super) fn find_too_large(&self) -> Option<&str> {
        let large = self.0.iter().filter(|(_, size)| !size.is_compilable());
        large.map(|(pattern, _)| pattern.as_str()).min()
    }

    pub(super) fn match_steps(&self, pattern: &str, bytes: usize) -> u64 {
        self.get(pattern).match_steps(bytes)
    }

    /// True if searches of the expression may not be finished.
    pub(super) fn is_backtracking(&self, pattern: &str) -> bool {
        self.get(pattern).is_backtracking
    }

    pub(super) fn has_backtracking(&self) -> bool {
        self.0.values().any(|size| size.is_backtracking)
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// True if each match begins at the start of the text.
fn is_anchored(ast: &Ast) -> bool {
    match ast {
        Ast::Assertion(assertion) => {
            matches!(assertion.kind, AssertionKind::StartLine | AssertionKind::StartText)
        }
        Ast::Group(group) => is_anchored(&group.ast),
        Ast::Alternation(alternation) => alternation.asts.iter().all(is_anchored),
        Ast::Concat(concat) => concat.asts.first().is_some_and(is_anchored),
        Ast::Empty(_)
        | Ast::Flags(_)
        | Ast::Literal(_)
        | Ast::Dot(_)
        | Ast::ClassUnicode(_)
        | Ast::ClassPerl(_)
        | Ast::ClassBracketed(_)
        | Ast::Repetition(_) => false,
    }
}

/// Measures of a part of an expression.
#[derive(Clone, Copy)]
struct Part {
    states: u64,
    /// States that are active at once if the part may begin at each character.
    all: u64,
    /// States that are active at once if the part begins at the given number of characters.
    active: u64,
    /// Characters of a match. `None`: without an end.
    min: u64,
    max: Option<u64>,
}

impl Part {
    fn new(states: u64, length: u64) -> Self {
        let active = 1 + states.min(256) / 16;
        Self { states, all: active, active, min: length, max: Some(length) }
    }
}

struct Measure {
    /// True if `\w` and `\d` are classes of Unicode.
    has_unicode_classes: bool,
}

impl Measure {
    /// `starts`: the number of characters at which the part may begin.
    fn part(&self, ast: &Ast, starts: u64) -> Part {
        match ast {
            Ast::Empty(_) | Ast::Flags(_) | Ast::Assertion(_) => Part::new(1, 0),
            Ast::Literal(literal) => Part::new(count(literal.c.len_utf8()), 1),
            Ast::Dot(_) => Part::new(ANY_CHARACTER, 1),
            Ast::ClassUnicode(_) => Part::new(UNICODE_CLASS, 1),
            Ast::ClassPerl(class) => Part::new(self.perl_states(class).saturating_add(2), 1),
            Ast::ClassBracketed(class) => Part::new(self.class_states(class).min(CLASS_MAX), 1),
            Ast::Repetition(repetition) => self.repetition(repetition, starts),
            Ast::Group(group) => {
                let part = self.part(&group.ast, starts);
                Part { states: part.states.saturating_add(2), ..part }
            }
            Ast::Alternation(alternation) => self.alternation(&alternation.asts, starts),
            Ast::Concat(concat) => self.concat(&concat.asts, starts),
        }
    }

    fn repetition(&self, repetition: &Repetition, starts: u64) -> Part {
        let inner = self.part(&repetition.ast, starts);
        let (min, max) = match &repetition.op.kind {
            RepetitionKind::ZeroOrOne => (0, Some(1)),
            RepetitionKind::ZeroOrMore => (0, None),
            RepetitionKind::OneOrMore => (1, None),
            RepetitionKind::Range(RepetitionRange::Exactly(count)) => (*count, Some(*count)),
            RepetitionKind::Range(RepetitionRange::AtLeast(min)) => (*min, None),
            RepetitionKind::Range(RepetitionRange::Bounded(min, max)) => (*min, Some(*max)),
        };
        let (min, max) = (u64::from(min), max.map(u64::from));
        let copies = max.unwrap_or(min).max(1);
        let all = inner.all.saturating_mul(copies);
        let active = if inner.min > 0 && inner.max == Some(inner.min) {
            // The copies begin one after the other, so that each start is in one or two of them.
            let live = inner.active.saturating_mul(copies.min(starts.saturating_add(1)));
            if max.is_none() { live.saturating_add(inner.all) } else { live }
        } else {
            all
        };
        let length_max = if max == Some(0) {
            Some(0)
        } else {
            max.zip(inner.max).map(|(count, length)| count.saturating_mul(length))
        };
        Part {
            states: inner.states.saturating_add(2).saturating_mul(copies),
            all,
            active: active.min(all),
            min: inner.min.saturating_mul(min),
            max: length_max,
        }
    }

    fn alternation(&self, branches: &[Ast], starts: u64) -> Part {
        let mut whole = Part { states: 1, all: 0, active: 0, min: u64::MAX, max: Some(0) };
        for branch in branches {
            let part = self.part(branch, starts);
            whole.states = whole.states.saturating_add(part.states).saturating_add(1);
            whole.all = whole.all.saturating_add(part.all);
            whole.active = whole.active.saturating_add(part.active);
            whole.min = whole.min.min(part.min);
            whole.max = whole.max.zip(part.max).map(|(one, other)| one.max(other));
        }
        whole
    }

    fn concat(&self, parts: &[Ast], starts: u64) -> Part {
        let mut whole = Part { states: 0, all: 0, active: 0, min: 0, max: Some(0) };
        // The largest difference of lengths of the parts before.
        let mut spread = 0_u64;
        let mut run = Run::default();
        for ast in parts {
            let starts_here = starts.saturating_mul(spread.saturating_add(1));
            let part = self.part(ast, starts_here);
            whole.states = whole.states.saturating_add(part.states);
            whole.all = whole.all.saturating_add(part.all);
            whole.min = whole.min.saturating_add(part.min);
            whole.max = whole.max.zip(part.max).map(|(one, other)| one.saturating_add(other));
            if part.max == Some(0) {
                whole.active = whole.active.saturating_add(part.active);
                continue;
            }
            run.add(part.active);
            let difference = part.max.map_or(u64::MAX, |max| max.saturating_sub(part.min));
            if difference > 0 {
                let active = std::mem::take(&mut run).active(starts_here);
                whole.active = whole.active.saturating_add(active);
                spread = spread.saturating_add(difference);
            }
        }
        let last = run.active(starts.saturating_mul(spread.saturating_add(1)));
        whole.active = whole.active.saturating_add(last).min(whole.all);
        whole
    }

    fn class_states(&self, class: &ClassBracketed) -> u64 {
        let own = if class.negated { 3 + ANY_CHARACTER } else { 3 };
        self.set_states(&class.kind).saturating_add(own)
    }

    fn set_states(&self, set: &ClassSet) -> u64 {
        match set {
            ClassSet::Item(item) => self.item_states(item),
            ClassSet::BinaryOp(operation) => {
                self.set_states(&operation.lhs).saturating_add(self.set_states(&operation.rhs))
            }
        }
    }

    fn item_states(&self, item: &ClassSetItem) -> u64 {
        match item {
            ClassSetItem::Empty(_) => 0,
            ClassSetItem::Literal(literal) => count(literal.c.len_utf8()),
            ClassSetItem::Range(range) if range.end.c.is_ascii() => 1,
            ClassSetItem::Range(_) => WIDE_RANGE,
            ClassSetItem::Ascii(class) if class.negated => 4 + ANY_CHARACTER,
            ClassSetItem::Ascii(_) => 4,
            ClassSetItem::Unicode(_) => UNICODE_CLASS,
            ClassSetItem::Perl(class) => self.perl_states(class),
            ClassSetItem::Bracketed(class) => self.class_states(class),
            ClassSetItem::Union(union) => {
                let items = union.items.iter().map(|item| self.item_states(item));
                items.fold(0, u64::saturating_add)
            }
        }
    }

    fn perl_states(&self, class: &ClassPerl) -> u64 {
        let states = match class.kind {
            ClassPerlKind::Space => 20,
            ClassPerlKind::Digit if self.has_unicode_classes => return UNICODE_DIGITS,
            ClassPerlKind::Word if self.has_unicode_classes => return UNICODE_CLASS,
            ClassPerlKind::Digit => 1,
            ClassPerlKind::Word => 4,
        };
        if class.negated { states + ANY_CHARACTER } else { states }
    }
}

/// Parts that follow each other at the same distances. A start is in one of them, or between two.
#[derive(Default)]
struct Run {
    sum: u64,
    largest: u64,
}

impl Run {
    fn add(&mut self, active: u64) {
        self.sum = self.sum.saturating_add(active);
        self.largest = self.largest.max(active);
    }

    fn active(&self, starts: u64) -> u64 {
        self.sum.min(self.largest.saturating_mul(starts.saturating_add(2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NESTED: &str = r"[ -~]*[ae]((((([ -~]{7}){7}){7}){7}){7}){7}[\x01\x02]";

    #[test]
    fn ordinary_patterns_are_small() {
        for pattern in [
            r"^[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$",
            r"^[^@\s]+@[^@\s]+\.[^@\s]+$",
            r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})?)?$",
            r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?$",
            r"^\w{1,64}$",
            r"^[^[\]]{1,20}$",
            r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9-]*\.)+[A-Za-z]{2,}$",
            r"^(?=.*[A-Z])(?=.*[0-9]).{8,64}$",
        ] {
            let size = PatternSize::of_schema(pattern);
            assert!(size.is_compilable() && size.states < 8_000, "{pattern}: {size:?}");
            assert!(size.match_steps(100) < 200_000, "{pattern}: {size:?}");
        }
        let long = PatternSize::of_schema("^.{0,2000}$");
        assert!(long.is_compilable() && long.states > 60_000, "{long:?}");
        assert!(long.match_steps(2_000) < 2_000, "{long:?}");
    }

    #[test]
    fn repetitions_multiply() {
        let nested = PatternSize::of_schema(NESTED);
        assert!(nested.states > 117_649 && nested.active >= 117_649, "{nested:?}");
        assert!(!nested.is_compilable());
        let twice = PatternSize::of_schema("^([a-z]{10}){10}$").states;
        let once = PatternSize::of_schema("^[a-z]{10}$").states;
        assert!(twice > 5 * once - 5 * STATES_BASE, "{twice} {once}");
    }

    #[test]
    fn each_unicode_class_counts() {
        let states = |copies: usize| PatternSize::of_schema(&r"\pL".repeat(copies)).states;
        assert_eq!(states(60) - states(20), 40 * UNICODE_CLASS);
        assert!(!PatternSize::of_schema(&r"\pL".repeat(120)).is_compilable());
        assert!(!PatternSize::of_schema(r"^\p{L}{100}$").is_compilable());
        assert!(PatternSize::of_schema(r"^[\p{L} .'-]{1,40}$").is_compilable());
    }

    #[test]
    fn steps_grow_with_text_and_states() {
        let ambiguous = PatternSize::of_schema("(a|b)*a(a|b){200}c");
        assert!(ambiguous.active > 400, "{ambiguous:?}");
        assert!(ambiguous.match_steps(400_000) > 2_000_000);
        let anchored = PatternSize::of_schema("^[A-Z][a-z]{1,200}$");
        assert!(anchored.match_steps(400_000) < 200_000, "{anchored:?}");
        let around = PatternSize::of_schema(r"^(?!\s*$).+");
        assert!(around.is_backtracking && around.match_steps(100_000) < 2_000_000, "{around:?}");
        let both = PatternSize::of_schema("(?=x)(a|b)*a(a|b){200}c");
        assert!(both.match_steps(10_000) > 2_000_000, "{both:?}");
    }

    #[test]
    fn patterns_that_call_groups_are_refused() {
        for pattern in [r"(?=a)(b\g<1>\g<1>\g<1>)", r"(?=a)(?<n>b(?&n)(?&n))", r"(a)(?(1)b|c)"] {
            assert!(!PatternSize::of_schema(pattern).is_compilable(), "{pattern}");
        }
        assert!(PatternSize::of_schema(r"^(['\x22])[a-z]+\1$").is_compilable());
        assert!(!PatternSize::of_schema(&"a".repeat(TEXT_BYTES_MAX + 1)).is_compilable());
        let unreadable = PatternSize::of_schema("[0-9").states;
        assert!(unreadable < 1_000, "the validator reports it: {unreadable}");
    }

    #[test]
    fn searches_of_the_regex_crate_are_measured() {
        let long = PatternSize::of_regex("[ab]*[ab]a[ab]{5000}[cd]", false);
        assert!(long.match_steps(1_000_000) > 50_000_000, "{long:?}");
        let words = PatternSize::of_regex(r"\w+@\w+\.\w+", false);
        assert!(words.match_steps(10_000_000) < 50_000_000, "{words:?}");
        let folded = PatternSize::of_regex(&format!("{}b", "a".repeat(9_999)), true);
        assert!(folded.active >= 9_999, "{folded:?}");
        assert!(PatternSize::of_literal().match_steps(10_000_000) < 1_000_000);
    }
}
