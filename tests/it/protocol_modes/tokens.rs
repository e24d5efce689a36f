//! Measurement of `docs/benchmarks.md`: tokens and bytes that a prompt of ten rounds sends in each
//! mode. Show it with `cargo test --test it -- input_of_ten_rounds --nocapture`.

use std::fmt::Write as _;

use turnwheel::testing::model::tokens::count_tokens;

use super::{RESUME, calls, done, run_with};
use crate::support::socket_model::{ModelTurn, Reply, input_texts};

/// Rounds with a call, and the response without one.
const ROUNDS: usize = 10;

fn replies() -> Vec<Reply> {
    let value = "The order A-17 was shipped on Monday and arrives on Thursday. ".repeat(8);
    (1..ROUNDS).map(|_| calls(value.trim())).chain([done()]).collect()
}

fn tokens(turn: &ModelTurn) -> usize {
    let count = |(_, text): &(String, String)| usize::try_from(count_tokens(text)).unwrap();
    input_texts(&turn.body).iter().map(count).sum()
}

#[expect(clippy::print_stdout, reason = "the test measures these figures")]
fn print_table(table: &str) {
    println!("{table}");
}

#[tokio::test]
async fn input_of_ten_rounds_is_constant_in_resume_and_grows_in_replay() {
    let (_, resumed) = run_with(RESUME, replies()).await;
    let (_, replayed) = run_with("continuation: inline", replies()).await;
    assert_eq!((resumed.len(), replayed.len()), (ROUNDS, ROUNDS));
    let mut table =
        "round | resume tokens | resume bytes | replay tokens | replay bytes\n".to_owned();
    for (round, (resume, replay)) in (1..).zip(resumed.iter().zip(&replayed)) {
        let _ = writeln!(
            table,
            "{round} | {} | {} | {} | {}",
            tokens(resume),
            resume.bytes,
            tokens(replay),
            replay.bytes
        );
    }
    let sums = |turns: &[ModelTurn]| {
        (
            turns.iter().map(tokens).sum::<usize>(),
            turns.iter().map(|turn| turn.bytes).sum::<usize>(),
        )
    };
    let _ = writeln!(table, "sum | {:?} | {:?}", sums(&resumed), sums(&replayed));
    print_table(&table);
    // The last round has one more text.
    let middle: Vec<usize> = resumed[1..ROUNDS - 1].iter().map(tokens).collect();
    assert!(middle.iter().all(|sent| *sent == middle[0]), "{table}");
    assert!(tokens(&replayed[8]) > 3 * tokens(&replayed[1]) / 2, "{table}");
    assert!(sums(&resumed).0 * 3 < sums(&replayed).0, "{table}");
}
