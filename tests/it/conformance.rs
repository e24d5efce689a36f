//! The conformance cases against the whole service: HTTP clients, and a fake Responses endpoint.

mod actions;
mod approvals;
mod azure;
mod case;
mod compare;
mod conversions;
mod hooks;
mod in_process;
mod loops;
mod notation;
mod parallel;
mod protocol;
mod sessions;
mod test_app;
mod trees;

use self::case::Case;

/// Runs the shared case with this id; passes with a message if there is no shared folder.
async fn run_shared_case(id: &str) {
    if let Some(case) = Case::find_shared(id) {
        run_case(&case).await;
    }
}

async fn run_case(case: &Case) {
    match case.system() {
        "azure" if case.given("messages").is_array() => {
            Box::pin(azure::run_history_case(case)).await;
        }
        "azure" => Box::pin(azure::run_stream_case(case)).await,
        "session" if case.given("lines").is_array() => sessions::run_case(case).await,
        "session" => Box::pin(trees::run_case(case)).await,
        "conversion" if case.given("messages").is_array() => {
            Box::pin(conversions::run_case(case)).await;
        }
        "approvals" => Box::pin(approvals::run_case(case)).await,
        "protocol" => Box::pin(protocol::run_case(case)).await,
        _ if case.is_parallel() => Box::pin(parallel::run_case(case)).await,
        _ => {
            Box::pin(loops::run_case(case)).await;
            Box::pin(in_process::run_case(case)).await;
        }
    }
}

macro_rules! cases {
    ($($name:ident $id:literal;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                run_shared_case($id).await;
            }
        )*
    };
}

cases! {
    l01_plain_prompt_emits_events_in_order "L01";
    l02_tool_call_starts_a_second_turn "L02";
    l03_two_calls_run_in_sequence "L03";
    l04_tool_progress_is_emitted_live "L04";
    l05_failing_tool_gives_model_an_error_result "L05";
    l06_unknown_tool_gives_model_an_error_result "L06";
    l07_invalid_arguments_give_model_an_error_result "L07";
    l09_steer_during_call_skips_remaining_calls "L09";
    l10_queued_steer_joins_the_first_turn "L10";
    l13_two_follow_ups_make_two_more_turns "L13";
    l16_error_inside_response_ends_the_run "L16";
    l17_abort_while_streaming_keeps_partial_text "L17";
    l18_continue_responds_to_the_last_message "L18";
    l19_rejections_have_the_texts_of_the_source "L19";
    l22_extension_changes_model_input_but_not_record "L22";
    l23_call_failing_before_events_ends_the_run "L23";
    l26_extension_blocks_calls_with_optional_reason "L26";
    a01_streamed_response_becomes_events_message_and_cost "A01";
    a03_error_event_becomes_message_error "A03";
    a04_history_becomes_input_items "A04";
    p01_gated_call_waits_and_runs_once_approved "P01";
    p02_rejected_call_never_runs "P02";
    g01_protocol_text_becomes_calls_and_results "G01";
    g02_malformed_protocol_text_becomes_text "G02";
    m01_messages_of_applications_reach_the_model "M01";
    s02_first_version_of_session_file_is_migrated "S02";
    s05_branches_have_the_contexts_of_the_source "S05";
}

/// Extra workers change no events, requests or stored results of the loop cases.
async fn run_loop_cases_with_extra_workers(workers: u32) {
    let Some(cases) = Case::load_shared() else { return };
    let of_loop = |case: &Case| case.id().starts_with('L') && !case.is_parallel();
    for case in cases.into_iter().filter(of_loop) {
        Box::pin(loops::run_case(&case.with_extra_workers(workers))).await;
    }
    let parallel_case = Case::with_parallel_calls("L03", &["c2", "c1"]).unwrap();
    Box::pin(parallel::run_case(&parallel_case.with_extra_workers(workers))).await;
}

#[tokio::test]
async fn loop_is_unchanged_with_two_workers() {
    run_loop_cases_with_extra_workers(1).await;
}

#[tokio::test]
async fn loop_is_unchanged_with_three_workers() {
    run_loop_cases_with_extra_workers(2).await;
}

#[tokio::test]
async fn l03_two_calls_run_in_parallel_when_enabled() {
    if let Some(case) = Case::with_parallel_calls("L03", &["c2", "c1"]) {
        run_case(&case).await;
    }
}

/// The loop gives the same events, messages and tool runs over protocol text.
#[tokio::test]
async fn loop_is_unchanged_in_protocol_mode() {
    let Some(cases) = Case::load_shared() else { return };
    let of_loop = |case: &Case| case.id().starts_with('L') && !case.is_parallel();
    for case in cases.into_iter().filter(of_loop) {
        Box::pin(loops::run_case(&case.through_protocol())).await;
    }
}

/// Local cases exercise the test code where the shared cases are missing.
#[tokio::test]
async fn local_cases_pass() {
    let own = Case::load_local();
    assert!(own.len() >= 4, "one of each kind");
    for case in &own {
        run_case(case).await;
    }
}
