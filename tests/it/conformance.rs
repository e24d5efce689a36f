//! The conformance cases against the whole service: HTTP clients, and a fake Responses endpoint.

mod acting;
mod approvals;
mod azure;
mod case;
mod compare;
mod hooks;
mod in_process;
mod loops;
mod notation;
mod parallel;
mod stage;

use self::case::Case;

/// Runs the shared case with this id; passes with a message if there is no shared folder.
async fn plays(id: &str) {
    if let Some(case) = Case::shared(id) {
        play(&case).await;
    }
}

async fn play(case: &Case) {
    match case.system() {
        "azure" if case.given("messages").is_array() => Box::pin(azure::history(case)).await,
        "azure" => Box::pin(azure::streams(case)).await,
        "approvals" => Box::pin(approvals::play(case)).await,
        _ if case.runs_at_once() => Box::pin(parallel::play(case)).await,
        _ => {
            Box::pin(loops::play(case)).await;
            Box::pin(in_process::play(case)).await;
        }
    }
}

macro_rules! cases {
    ($($name:ident $id:literal;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                plays($id).await;
            }
        )*
    };
}

cases! {
    l01_a_plain_prompt_tells_its_events_in_order "L01";
    l02_a_tool_call_is_followed_by_a_second_turn "L02";
    l03_two_calls_run_one_after_the_other "L03";
    l04_a_tools_progress_is_told_live "L04";
    l05_a_failing_tool_is_a_result_that_the_model_reads "L05";
    l06_an_unknown_tool_is_a_result_that_the_model_reads "L06";
    l07_arguments_that_do_not_fit_are_a_result_that_the_model_reads "L07";
    l09_a_steer_during_a_call_skips_the_others_of_its_batch "L09";
    l10_a_steer_that_waited_joins_the_first_turn "L10";
    l13_two_follow_ups_are_two_more_turns "L13";
    l16_an_error_in_the_middle_of_an_answer_ends_the_run "L16";
    l17_a_stop_while_text_streams_keeps_what_was_said "L17";
    l18_going_on_from_a_message_that_nobody_has_answered "L18";
    l19_what_is_refused_is_refused_in_the_sources_words "L19";
    l22_an_extension_changes_what_the_model_is_sent_and_not_the_record "L22";
    l23_a_call_that_fails_before_any_event_ends_the_run "L23";
    l26_an_extension_blocks_calls_with_its_reason_or_without "L26";
    a01_a_streamed_answer_becomes_events_message_and_cost "A01";
    a03_an_error_event_becomes_the_messages_error "A03";
    a04_history_becomes_input_items "A04";
    p01_a_gated_call_waits_and_runs_once_approved "P01";
    p02_a_rejected_call_never_runs "P02";
}

/// Extra workers change no events, requests or stored results of the loop cases.
async fn plays_among(workers: u32) {
    let Some(cases) = Case::all_shared() else { return };
    let of_loop = |case: &Case| case.id().starts_with('L') && !case.runs_at_once();
    for case in cases.into_iter().filter(of_loop) {
        Box::pin(loops::play(&case.among(workers))).await;
    }
    let at_once = Case::of_later_releases("L03", &["c2", "c1"]).unwrap();
    Box::pin(parallel::play(&at_once.among(workers))).await;
}

#[tokio::test]
async fn the_loop_is_the_same_with_two_workers() {
    plays_among(1).await;
}

#[tokio::test]
async fn the_loop_is_the_same_with_three_workers() {
    plays_among(2).await;
}

#[tokio::test]
async fn l03_two_calls_run_at_once_where_the_setting_says_so() {
    if let Some(case) = Case::of_later_releases("L03", &["c2", "c1"]) {
        play(&case).await;
    }
}

/// Local cases exercise the test code where the shared cases are missing.
#[tokio::test]
async fn the_cases_made_up_here_are_played() {
    let own = Case::own();
    assert!(own.len() >= 4, "one of each kind");
    for case in &own {
        play(case).await;
    }
}
