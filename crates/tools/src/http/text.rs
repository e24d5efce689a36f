//! Text of a response: charset decoding, web pages without markup, and truncation between
//! characters.

use std::borrow::Cow;

use axum::http::header;
use bytes::Bytes;

use crate::http::tool_response::ToolResponse;

/// Decodes the body by its charset. Invalid bytes become replacement characters.
pub(super) fn decode_body(response: &ToolResponse) -> Cow<'_, str> {
    let full = response.header(&header::CONTENT_TYPE).to_ascii_lowercase();
    let charset = full
        .split(';')
        .find_map(|part| part.trim().strip_prefix("charset="))
        .map(|label| label.trim_matches('"').trim());
    let encoding = charset
        .and_then(|label| encoding_rs::Encoding::for_label(label.as_bytes()))
        .unwrap_or(encoding_rs::UTF_8);
    encoding.decode(&response.body).0
}

/// Decoder of UTF-8 in chunks. Invalid bytes become replacement characters, and a byte order mark is
/// skipped.
pub(crate) struct LossyDecoder(encoding_rs::Decoder);

impl Default for LossyDecoder {
    fn default() -> Self {
        Self(encoding_rs::UTF_8.new_decoder_with_bom_removal())
    }
}

impl LossyDecoder {
    /// A character that the chunk ends in the middle of is part of the next chunk.
    pub(crate) fn decode(&mut self, chunk: &[u8]) -> Bytes {
        let length = self.0.max_utf8_buffer_length(chunk.len()).unwrap_or_default();
        let mut text = String::with_capacity(length);
        let _ = self.0.decode_to_string(chunk, &mut text, false);
        Bytes::from(text)
    }
}

/// The beginning of a text: whole characters, at most `bytes_max` bytes.
pub(crate) fn byte_prefix(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or_default()
}

/// The words of a web page without tags, scripts and styles, with collapsed white space. The result
/// is for reading and not safe as HTML.
pub(super) fn extract_page_text(page: &str) -> String {
    let mut words = String::new();
    let mut rest = page;
    while let Some((before, from)) = rest.split_once('<') {
        push_words(&mut words, before);
        let lower = byte_prefix(from, 16).to_ascii_lowercase();
        let hidden =
            ["script", "style", "head", "noscript", "svg", "template"].into_iter().find(|tag| {
                lower.strip_prefix(tag).is_some_and(|after| {
                    !after.starts_with(|letter: char| letter.is_ascii_alphanumeric())
                })
            });
        rest = if let Some(comment) = from.strip_prefix("!--") {
            comment.split_once("-->").map_or("", |(_, after)| after)
        } else if let Some(tag) = hidden {
            skip_element(from, tag)
        } else {
            from.split_once('>').map_or("", |(_, after)| after)
        };
    }
    push_words(&mut words, rest);
    [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(words, |text, (entity, character)| text.replace(entity, character))
}

fn push_words(words: &mut String, text: &str) {
    for word in text.split_whitespace() {
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(word);
    }
}

/// Returns the text after `</tag>`, in any letter case.
fn skip_element<'p>(page: &'p str, tag: &str) -> &'p str {
    let closing = format!("</{tag}");
    let Some(at) = find_ignoring_case(page, &closing) else { return "" };
    page.get(at..).and_then(|rest| rest.split_once('>')).map_or("", |(_, after)| after)
}

fn find_ignoring_case(text: &str, wanted: &str) -> Option<usize> {
    text.match_indices("</").map(|(at, _)| at).find(|at| {
        text.as_bytes()
            .get(*at..at + wanted.len())
            .is_some_and(|bytes| bytes.eq_ignore_ascii_case(wanted.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_page_text_excludes_markup() {
        let page = "<!DOCTYPE html><HTML><HEAD><title>T</title></HEAD><body><h1>Bad\n gateway</h1><!-- no --><Script>evil('<p>')</SCRIPT><p>Try &amp; wait &lt;1h</p><header>top</header>";
        assert_eq!(extract_page_text(page), "Bad gateway Try & wait <1h top");
        assert_eq!(extract_page_text("a <b"), "a");
        assert_eq!(extract_page_text("<script>never closed"), "");
    }

    #[test]
    fn text_is_truncated_between_characters() {
        assert_eq!(byte_prefix("aé", 2), "a");
        assert_eq!(byte_prefix("aé", 9), "aé");
    }
}
