//! JSON as Newtonsoft.Json reads it: comments, single quotes, bare names, hexadecimal numbers.

use turnwheel::testing::host::{Json, JsonReader};

/// Levels of arrays and objects in a message and in a response.
const MESSAGE_DEPTH_MAX: usize = 64;
const RESPONSE_DEPTH_MAX: usize = 256;
/// Digits of an integer that Newtonsoft.Json reads.
const INTEGER_DIGITS_MAX: usize = 380;

pub(crate) const LENIENT: JsonReader = JsonReader { text: read_text, response: read_response };

/// Reads one value without text around it.
fn read_text(text: &str) -> Option<Json> {
    let mut reader = Reader { rest: text, levels: MESSAGE_DEPTH_MAX };
    let value = reader.read_value()?;
    reader.skip_space();
    reader.rest.is_empty().then_some(value)
}

/// Reads the first value, without a byte order mark before it. No value is null.
fn read_response(text: &str) -> Option<Json> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader { rest: text, levels: RESPONSE_DEPTH_MAX };
    reader.skip_comments()?;
    if reader.rest.is_empty() { Some(Json::Null) } else { reader.read_value() }
}

struct Reader<'a> {
    rest: &'a str,
    /// Levels that may still begin.
    levels: usize,
}

impl<'a> Reader<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, prefix: &str) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Returns the text of the comment that begins here. Fails if the comment has no end.
    fn take_comment(&mut self) -> Result<Option<&'a str>, ()> {
        for (open, close) in [("/*", "*/"), ("//", "\n")] {
            if self.take(open) {
                let (comment, rest) = self.rest.split_once(close).ok_or(())?;
                self.rest = rest;
                return Ok(Some(comment));
            }
        }
        Ok(None)
    }

    fn skip_comments(&mut self) -> Option<()> {
        while self.take_comment().ok()?.is_some() {}
        self.skip_space();
        Some(())
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn read_value(&mut self) -> Option<Json> {
        self.skip_comments()?;
        match self.rest.chars().next()? {
            '{' => self.read_container(Self::read_object),
            '[' => self.read_container(Self::read_array),
            '"' | '\'' => self.read_string().map(Json::Text),
            _ => self.read_word(),
        }
    }

    fn read_container(&mut self, read: fn(&mut Self) -> Option<Json>) -> Option<Json> {
        self.levels = self.levels.checked_sub(1)?;
        self.rest = self.rest.get(1..)?;
        let value = read(self);
        self.levels += 1;
        value
    }

    fn read_object(&mut self) -> Option<Json> {
        let mut members: Vec<(String, Json)> = Vec::new();
        loop {
            self.skip_comments()?;
            if self.take("}") {
                return Some(Json::Object(members));
            }
            let name = if self.rest.starts_with(['"', '\'']) {
                self.read_string()?
            } else {
                self.take_while(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '$'))
                    .to_owned()
            };
            self.skip_comments()?;
            if !self.take(":") {
                return None;
            }
            let value = self.read_value()?;
            match members.iter_mut().find(|(same, _)| *same == name) {
                Some(member) => member.1 = value,
                None => members.push((name, value)),
            }
            self.read_separator('}')?;
        }
    }

    /// A comment is an element with its text.
    fn read_array(&mut self) -> Option<Json> {
        let mut elements = Vec::new();
        loop {
            while let Some(comment) = self.take_comment().ok()? {
                elements.push(Json::Text(comment.to_owned()));
            }
            if self.take("]") {
                return Some(Json::Array(elements));
            }
            elements.push(self.read_value()?);
            self.read_separator(']')?;
        }
    }

    /// Reads a comma, or nothing before the end.
    fn read_separator(&mut self, end: char) -> Option<()> {
        self.skip_comments()?;
        (self.take(",") || self.rest.starts_with(end)).then_some(())
    }

    fn read_string(&mut self) -> Option<String> {
        let quote = self.rest.chars().next()?;
        self.rest = self.rest.get(1..)?;
        let mut units: Vec<u16> = Vec::new();
        loop {
            let letter = self.rest.chars().next()?;
            self.rest = self.rest.get(letter.len_utf8()..)?;
            if letter == quote {
                return Some(String::from_utf16_lossy(&units));
            }
            if letter == '\\' {
                units.push(self.read_escape()?);
            } else {
                units.extend_from_slice(letter.encode_utf16(&mut [0; 2]));
            }
        }
    }

    fn read_escape(&mut self) -> Option<u16> {
        let letter = self.rest.chars().next()?;
        self.rest = self.rest.get(letter.len_utf8()..)?;
        Some(match letter {
            'b' => 8,
            't' => 9,
            'n' => 10,
            'f' => 12,
            'r' => 13,
            '\\' | '"' | '\'' | '/' => u16::try_from(u32::from(letter)).ok()?,
            'u' => {
                let (digits, rest) = self.rest.split_at_checked(4)?;
                self.rest = rest;
                u16::from_str_radix(digits, 16).ok()?
            }
            _ => return None,
        })
    }

    fn read_word(&mut self) -> Option<Json> {
        let word = self.take_while(|letter| {
            letter.is_ascii_alphanumeric() || matches!(letter, '.' | '+' | '-')
        });
        Some(match word {
            "null" | "undefined" => Json::Null,
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            "NaN" => Json::Float(f64::NAN),
            "Infinity" => Json::Float(f64::INFINITY),
            "-Infinity" => Json::Float(f64::NEG_INFINITY),
            number => return read_number(number),
        })
    }
}

fn read_number(text: &str) -> Option<Json> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let integer = |digits: &str, radix| {
        i64::from_str_radix(digits, radix).ok().map(|number| Json::Integer(number.to_string()))
    };
    if let Some(digits) = digits.strip_prefix("0x") {
        return integer(digits, 16);
    }
    if digits.is_empty() || digits.starts_with('+') {
        return None;
    }
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let is_number = digits.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.');
        return text.parse().ok().filter(|_| is_number).map(Json::Float);
    }
    match digits {
        "0" => integer("0", 10),
        _ if digits.starts_with('0') => integer(digits, 8),
        _ if digits.len() > INTEGER_DIGITS_MAX => None,
        _ => Some(Json::Integer(text.to_owned())),
    }
}
