//! Styles of printed text, and their escape sequences. Without colours there are none.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Colour {
    #[default]
    Default,
    Red,
    Green,
    Yellow,
    Cyan,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Weight {
    #[default]
    Normal,
    Bold,
    Dim,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) weight: Weight,
    pub(crate) is_italic: bool,
    pub(crate) colour: Colour,
}

impl Style {
    pub(crate) const PLAIN: Self =
        Self { weight: Weight::Normal, is_italic: false, colour: Colour::Default };
    pub(crate) const BOLD: Self = Self { weight: Weight::Bold, ..Self::PLAIN };
    pub(crate) const DIM: Self = Self { weight: Weight::Dim, ..Self::PLAIN };
    pub(crate) const CODE: Self = Self { colour: Colour::Cyan, ..Self::PLAIN };
    pub(crate) const GOOD: Self = Self { colour: Colour::Green, ..Self::PLAIN };
    pub(crate) const BAD: Self = Self { colour: Colour::Red, ..Self::PLAIN };
    pub(crate) const ALERT: Self =
        Self { weight: Weight::Bold, colour: Colour::Yellow, ..Self::PLAIN };

    /// The escape sequence that starts the style; empty for plain text.
    pub(crate) fn start(self) -> String {
        let weight = match self.weight {
            Weight::Normal => None,
            Weight::Bold => Some("1"),
            Weight::Dim => Some("2"),
        };
        let colour = match self.colour {
            Colour::Default => None,
            Colour::Red => Some("31"),
            Colour::Green => Some("32"),
            Colour::Yellow => Some("33"),
            Colour::Cyan => Some("36"),
        };
        let italic = self.is_italic.then_some("3");
        let codes: Vec<&str> = [weight, italic, colour].into_iter().flatten().collect();
        if codes.is_empty() { String::new() } else { format!("\u{1b}[{}m", codes.join(";")) }
    }
}

/// Ends each style.
pub(crate) const RESET: &str = "\u{1b}[0m";
