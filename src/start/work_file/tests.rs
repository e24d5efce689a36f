//! Tests of the work file.

use std::sync::atomic::{AtomicBool, Ordering};

use super::testing::{count_records, create, create_with_clock, key, kill, read_marked};
use super::*;
use turnwheel_platform::clock::ManualClock;
use turnwheel_platform::ids::{ConversationId, TenantId, UserId};
use turnwheel_platform::shutdown::StopTimes;

fn find(file: &WorkFile) -> Vec<DeadProcess> {
    file.find_dead(&mut BTreeSet::new())
}

fn manual_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(1_700_000_000_000)))
}

/// A work file whose marks end by that clock.
fn create_at(folder: &Path, clock: &Arc<ManualClock>) -> Arc<WorkFile> {
    create_with_clock(folder, "w1", Arc::clone(clock) as _)
}

fn add(file: &Arc<WorkFile>, id: &str) -> WorkMark {
    file.add(&key(id), &Shutdown::default()).unwrap()
}

#[test]
fn work_of_a_dead_process_is_found_until_it_is_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let clock = manual_clock();
    let dying = create_at(folder.path(), &clock);
    let (first, second) = (add(&dying, "a"), add(&dying, "b"));
    first.end();
    let third = add(&dying, "c");
    let successor = create_with_clock(folder.path(), "w2", Arc::clone(&clock) as _);
    assert!(find(&successor).is_empty(), "the process lives");

    kill(&dying, &folder.path().join("copy.work"));
    let found = find(&successor);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].worker, WorkerId::new("w1"));
    assert_eq!(found[0].conversations, [key("b"), key("c"), key("a")], "running turns first");
    assert!(find(&create(folder.path(), "w3")).is_empty(), "this process recovers them");
    // It dies before it has ended.
    drop(found);
    let found = find(&successor);
    assert_eq!(found.len(), 1);
    found.into_iter().for_each(DeadProcess::remove);
    assert!(find(&successor).is_empty());
    drop((second, third));
    clock.advance(LEASE_TIME);
    drop(dying);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a clean end removes the file");
}

#[test]
fn work_that_is_cut_at_the_end_of_a_process_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, shutdown) = (manual_clock(), Shutdown::default());
    let ending = create_at(folder.path(), &clock);
    let add = |id| ending.add(&key(id), &shutdown).unwrap();
    let (before, done, cut) = (add("before"), add("done"), add("cut"));
    before.end();
    let second = Duration::from_secs(1);
    shutdown.begin(StopTimes { repeatable: second, writes: second });
    done.end();
    drop((cut, ending));
    let successor = create_with_clock(folder.path(), "w2", Arc::clone(&clock) as _);
    let found = find(&successor);
    assert_eq!(found.len(), 1);
    // The host may have been killed before it wrote the wake-up messages of the others.
    assert_eq!(found[0].conversations, [key("cut"), key("before"), key("done")]);
    drop(found);
    clock.advance(RESPONSE_TIME + START_TIME_MAX);
    assert_eq!(find(&successor)[0].conversations, [key("cut")]);
}

#[test]
fn mark_outlasts_its_turn_until_the_host_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let clock = manual_clock();
    let file = create_at(folder.path(), &clock);
    let running = add(&file, "running");
    add(&file, "ended").end();
    // The turn failed, or it was cut: its lease may be in the head.
    drop(add(&file, "failed"));
    assert_eq!(read_marked(&file), [key("running"), key("ended"), key("failed")]);
    clock.advance(RESPONSE_TIME + START_TIME_MAX);
    assert_eq!(read_marked(&file), [key("running"), key("failed")]);
    clock.advance(LEASE_TIME.saturating_sub(RESPONSE_TIME));
    assert_eq!(read_marked(&file), [key("running")]);
    drop(running);
}

#[test]
fn clean_end_keeps_the_file_while_marks_last() {
    let folder = tempfile::tempdir().unwrap();
    let clock = manual_clock();
    for (time, files) in
        [(RESPONSE_TIME.saturating_sub(Duration::from_millis(1)), 1), (RESPONSE_TIME, 0)]
    {
        let file = create_at(folder.path(), &clock);
        add(&file, "a").end();
        clock.advance(time);
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), files, "after {time:?}");
        let _ = fs::remove_file(folder.path().join("w1.work"));
    }
}

#[test]
fn records_are_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let clock = manual_clock();
    let file = create_at(folder.path(), &clock);
    for _ in 0..5 {
        add(&file, "a").end();
    }
    assert_eq!((count_records(&file), read_marked(&file)), (2, vec![key("a")]));
    let second = add(&file, "b");
    assert_eq!(count_records(&file), 3, "the mark of the first conversation lasts");
    clock.advance(RESPONSE_TIME);
    add(&file, "c").end();
    assert_eq!((count_records(&file), read_marked(&file)), (3, vec![key("b"), key("c")]));
    // Two deliveries of one conversation.
    let again = add(&file, "b");
    assert_eq!(count_records(&file), 4);
    drop((second, again));
    clock.advance(LEASE_TIME);
    let marks = [add(&file, "b"), add(&file, "d"), add(&file, "e")];
    assert_eq!(count_records(&file), 4, "all of them are over");
    assert_eq!(read_marked(&file).len(), marks.len());
}

/// The second delivery finds the lease of the first one, which failed, and is turned away.
#[test]
fn second_turn_does_not_shorten_the_mark() {
    let folder = tempfile::tempdir().unwrap();
    let clock = manual_clock();
    let file = create_at(folder.path(), &clock);
    drop(add(&file, "a"));
    add(&file, "a").end();
    clock.advance((LEASE_TIME + START_TIME_MAX).saturating_sub(Duration::from_millis(1)));
    assert_eq!(read_marked(&file), [key("a")]);
    clock.advance(Duration::from_millis(1));
    assert!(read_marked(&file).is_empty());
}

#[test]
fn marks_of_ended_turns_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let file = create_at(folder.path(), &manual_clock());
    drop(add(&file, "failed"));
    for number in 0..ENDED_MARKS_MAX + 10 {
        add(&file, &number.to_string()).end();
    }
    assert_eq!(count_records(&file), 1 + ENDED_MARKS_MAX as u64);
    let marked = read_marked(&file);
    assert_eq!(marked.len(), ENDED_MARKS_MAX);
    let newest = key(&(ENDED_MARKS_MAX + 9).to_string());
    assert!(marked.contains(&newest) && !marked.contains(&key("0")), "the oldest ends");
    assert!(marked.contains(&key("failed")), "it lasts longer than the others");
    let bytes = fs::metadata(folder.path().join("w1.work")).unwrap().len();
    assert!(bytes * 2 <= FILE_BYTES_MAX + 2 * RECORD_BYTES as u64, "as many turns may run");
}

/// Another process that starts at the same time would take a file without a lock.
#[test]
fn file_has_its_lock_when_others_find_it() {
    let folder = tempfile::tempdir().unwrap();
    let neighbour = create(folder.path(), "w0");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let search = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert!(find(&neighbour).is_empty());
            }
        });
        let files: Vec<_> = (1..100)
            .map(|number| {
                let worker = WorkerId::new(format!("w{number}"));
                WorkFile::create(folder.path(), &worker, manual_clock())
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        search.join().expect("no file is taken");
        assert!(files.iter().all(Result::is_ok));
    });
}

#[test]
fn leftover_of_an_interrupted_start_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (left, starting) = (folder.path().join("w8.new"), folder.path().join("w9.new"));
    for path in [&left, &starting] {
        fs::write(path, "").unwrap();
    }
    let file = File::options().write(true).open(&left).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let own = create(folder.path(), "w1");
    assert!(find(&own).is_empty());
    assert!(!left.exists() && starting.exists(), "the other process has just created its file");
    assert!(!folder.path().join("w1.new").exists() && folder.path().join("w1.work").exists());
}

#[cfg(unix)]
#[test]
fn odd_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let own = create(folder.path(), "w1");
    let target = folder.path().join("target");
    fs::write(&target, "w9\n{}").unwrap();
    std::os::unix::fs::symlink(&target, folder.path().join("link.work")).unwrap();
    fs::write(folder.path().join("other.txt"), "w9").unwrap();
    fs::write(folder.path().join("bytes.work"), [0xff, 0xfe]).unwrap();
    fs::create_dir(folder.path().join("folder.work")).unwrap();
    let mut refused = BTreeSet::new();
    assert!(own.find_dead(&mut refused).is_empty());
    assert_eq!(refused.len(), 3, "each is logged once: {refused:?}");
    assert!(target.exists() && folder.path().join("bytes.work").exists());
    let torn = format!("w9  \n{:END_BYTES$}{{\"tenant\":\"t\",\"us", "");
    fs::write(folder.path().join("torn.work"), torn).unwrap();
    let found = own.find_dead(&mut refused);
    assert_eq!(found.len(), 1);
    assert!(found[0].worker == WorkerId::new("w9") && found[0].conversations.is_empty());
    let longest = "x".repeat(255);
    let long = ConversationKey {
        tenant: TenantId::new(longest.as_str()),
        user: UserId::new(longest.as_str()),
        conversation_id: ConversationId::new(longest.as_str()),
    };
    assert!(own.add(&long, &Shutdown::default()).is_some());
}

#[cfg(unix)]
#[test]
fn files_and_folders_of_other_users_are_refused() {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    let folder = tempfile::tempdir().unwrap();
    let own = create(folder.path(), "w1");
    let open_file = |folder: &Path, worker: &str| {
        WorkFile::create(folder, &WorkerId::new(worker), manual_clock())
    };
    let foreign = folder.path().join("foreign.work");
    fs::write(&foreign, "w9").unwrap();
    // Only the superuser can give files away.
    if chown(&foreign, Some(12_345), None).is_ok() {
        assert!(find(&own).is_empty());
        chown(folder.path(), Some(12_345), None).unwrap();
        assert!(open_file(folder.path(), "w2").is_err());
    }
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(open_file(open.path(), "w1").is_err());
    assert_eq!(fs::read_dir(open.path()).unwrap().count(), 0);
}
