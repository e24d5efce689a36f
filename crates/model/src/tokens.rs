//! Token counts of texts, as the models count them (o200k).

/// Bytes up to which a text is counted. Longer texts are estimated: they exceed a context window
/// anyway, and counting takes long.
const COUNTED_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of a piece. Texts are counted in pieces, so that no text exceeds the limits of the
/// tokenizer's patterns. Each seam miscounts one or two tokens.
const PIECE_BYTES: usize = 8 * 1024;

/// Number of tokens of the text. The first call loads the vocabulary: it takes 0.2 s and keeps 50
/// MB for the life of the process. Call [`upper_bound`] first.
pub fn count_tokens(text: &str) -> u64 {
    if text.len() > COUNTED_BYTES_MAX {
        return (text.chars().count() as u64).div_ceil(4);
    }
    let vocabulary = tiktoken_rs::o200k_base_singleton();
    let mut tokens = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
        tokens += vocabulary.count_ordinary(piece) as u64;
        rest = after;
    }
    tokens
}

/// Upper bound of the number of tokens, at no cost: no text has more tokens than bytes.
pub fn upper_bound(text: &str) -> u64 {
    text.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_counts_match_models() {
        let cases =
            [("", 0), ("hello world", 2), ("tiktoken is great!", 6), ("お誕生日おめでとう", 8)];
        for (text, tokens) in cases {
            assert_eq!(count_tokens(text), tokens, "{text}");
        }
    }

    #[test]
    fn token_count_handles_extreme_texts() {
        let spaces = format!("{}x", " ".repeat(300_000));
        let odd = ["a".repeat(100_000), spaces, "😀".repeat(20_000), "\u{0}\n".repeat(20_000)];
        for text in odd {
            let counted = count_tokens(&text);
            assert!(counted > 0 && counted <= upper_bound(&text), "{counted} of {}", text.len());
        }
        assert_eq!(count_tokens(&"word ".repeat(400_000)), 500_000, "estimated");
    }
}
