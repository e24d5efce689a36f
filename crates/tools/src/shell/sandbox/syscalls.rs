//! System calls that commands of the sandbox cannot use.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

/// Refused with EPERM: mounts and namespaces, other processes, the kernel, and memory that no
/// process accounts for (shared memory, sockets).
const REFUSED: &[libc::c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_fanotify_init,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_personality,
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_shmget,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
    libc::SYS_vmsplice,
    libc::SYS_socket,
    libc::SYS_socketpair,
];

const NAMESPACE_FLAGS: [libc::c_int; 8] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    0x80, // CLONE_NEWTIME
];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Applies the filters to this process and all that it executes.
pub(super) fn restrict() -> Result<(), seccompiler::Error> {
    // Its flags are in memory, where a filter cannot read them. Libraries then use `clone`.
    let mut absent = Rules::new();
    insert(&mut absent, libc::SYS_clone3, &[]);
    apply(absent, libc::ENOSYS)?;
    let mut refused = Rules::new();
    for call in REFUSED {
        insert(&mut refused, *call, &[]);
    }
    let flags = NAMESPACE_FLAGS.map(|flag| flag.unsigned_abs().into());
    let new_namespaces =
        flags.map(|flag| has_bits(0, flag)).into_iter().collect::<Result<Vec<_>, _>>()?;
    insert(&mut refused, libc::SYS_clone, &new_namespaces);
    let shared_anonymous = (libc::MAP_SHARED | libc::MAP_ANONYMOUS).unsigned_abs().into();
    insert(&mut refused, libc::SYS_mmap, &[has_bits(3, shared_anonymous)?]);
    apply(refused, libc::EPERM)
}

/// A rule for calls whose argument has all of these bits.
fn has_bits(argument: u8, bits: u64) -> Result<SeccompRule, seccompiler::Error> {
    let operator = SeccompCmpOp::MaskedEq(bits);
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, bits);
    Ok(SeccompRule::new(vec![condition?])?)
}

/// Without rules, all uses of the call match.
fn insert(rules: &mut Rules, call: libc::c_long, of_call: &[SeccompRule]) {
    rules.insert(call, of_call.to_vec());
    // The same call in the x32 ABI.
    #[cfg(target_arch = "x86_64")]
    rules.insert(call | 0x4000_0000, of_call.to_vec());
}

fn apply(rules: Rules, error: libc::c_int) -> Result<(), seccompiler::Error> {
    let arch = std::env::consts::ARCH.try_into()?;
    let refused = SeccompAction::Errno(error.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch)?;
    let program: BpfProgram = filter.try_into()?;
    apply_filter(&program)
}
