//! Signals that stop the process.

/// Ctrl-C and SIGTERM. From its creation on they do not end the process.
#[cfg(unix)]
pub(in crate::app) struct StopSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl StopSignals {
    pub(in crate::app) fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    pub(in crate::app) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Ctrl-C.
#[cfg(not(unix))]
pub(in crate::app) struct StopSignals;

#[cfg(not(unix))]
impl StopSignals {
    pub(in crate::app) fn listen() -> std::io::Result<Self> {
        Ok(Self)
    }

    pub(in crate::app) async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
