//! Modes of the terminal outside of an input line, and the signals that end a chat.
//!
//! The terminal is in raw mode only while a line is read. A key between two lines has to be the same key: if the kernel
//! turned Enter into Ctrl-J, the next line would end in the middle of the typed text, and its rest would be lost.

use super::status::SharedStatus;

/// Keeps the keys as they are typed, without an echo. Restores the former modes when dropped.
#[cfg(unix)]
pub(super) struct KeyModes {
    /// `None`: the terminal does not report its modes.
    former: Option<rustix::termios::Termios>,
}

#[cfg(unix)]
impl KeyModes {
    pub(super) fn set() -> Self {
        use rustix::termios::{InputModes, LocalModes, SpecialCodeIndex, tcgetattr};

        let former = tcgetattr(std::io::stdin()).ok();
        if let Some(former) = &former {
            let mut modes = former.clone();
            modes.input_modes.remove(InputModes::ICRNL);
            // Ctrl-C is still a signal: nothing reads keys here.
            modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            // In a line Ctrl-Z is a key. As a signal it would discard the keys before it.
            modes.special_codes[SpecialCodeIndex::VSUSP] = NO_KEY;
            apply(&modes);
        }
        Self { former }
    }
}

#[cfg(unix)]
impl Drop for KeyModes {
    fn drop(&mut self) {
        if let Some(former) = &self.former {
            apply(former);
        }
    }
}

/// `_POSIX_VDISABLE`: no key has the effect.
#[cfg(unix)]
const NO_KEY: u8 = if cfg!(target_os = "linux") { 0 } else { 0xff };

/// Does nothing if the terminal has gone.
#[cfg(unix)]
fn apply(modes: &rustix::termios::Termios) {
    use rustix::termios::{OptionalActions, tcsetattr};

    let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, modes);
}

/// Completes after SIGTERM, after SIGHUP, which reports the end of the terminal, and after a key that is SIGINT or SIGQUIT and
/// not for the editor. From this call on they do not end the process, which would keep the modes of the chat.
#[cfg(unix)]
pub(super) fn wait_for_end(status: &SharedStatus) -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};

    let keys = (signal(SignalKind::interrupt()), signal(SignalKind::quit()));
    let ends = (signal(SignalKind::terminate()), signal(SignalKind::hangup()));
    async move {
        let ((Ok(mut interrupt), Ok(mut quit)), (Ok(mut terminate), Ok(mut hangup))) = (keys, ends)
        else {
            return std::future::pending().await;
        };
        loop {
            tokio::select! {
                _ = interrupt.recv() => if !status.is_editing() { return },
                _ = quit.recv() => if !status.is_editing() { return },
                _ = terminate.recv() => return,
                _ = hangup.recv() => return,
            }
        }
    }
}

/// Other systems report keys, not characters.
#[cfg(not(unix))]
pub(super) struct KeyModes;

#[cfg(not(unix))]
impl KeyModes {
    pub(super) fn set() -> Self {
        Self
    }
}

#[cfg(not(unix))]
pub(super) fn wait_for_end(_status: &SharedStatus) -> impl Future<Output = ()> {
    std::future::pending()
}
