//! Errors of the start of the service.

use std::error::Error;
use std::time::Duration;

use tokio::time::error::Elapsed;

use turnwheel_azure::cosmos::ConnectError;
use turnwheel_azure::storage::StorageError;
use turnwheel_devhost::HostError;
use turnwheel_platform::settings::mistake::SettingMistake;
use turnwheel_storage::store::embedded::OpenError;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("invalid settings:{}", lines(.0))]
    Settings(Vec<String>),
    #[error("invalid agents:{}", lines(.0))]
    Agents(Vec<String>),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Folder(#[from] OpenError),
    /// The command-line arguments are invalid; the program exits with code 2.
    #[error("{0}")]
    Arguments(String),
    #[error("could not {doing}")]
    Io { doing: &'static str, source: Box<dyn Error + Send + Sync> },
}

impl StartError {
    /// One line for each mistake.
    pub(crate) fn into_mistakes(self) -> Vec<String> {
        match self {
            Self::Agents(mistakes) | Self::Settings(mistakes) => mistakes,
            Self::Host(_) | Self::Folder(_) | Self::Arguments(_) | Self::Io { .. } => {
                vec![self.to_string()]
            }
        }
    }

    pub(crate) fn is_folder_in_use(&self) -> bool {
        matches!(self, Self::Folder(OpenError::InUse { .. }))
    }

    /// The part that is away, if the same start may succeed later. `None`: the configuration is
    /// refused. `waited`: time since the first attempt.
    pub(crate) fn find_awaited(&self, waited: Duration) -> Option<&'static str> {
        if self.is_folder_in_use() {
            return (waited < FOLDER_WAIT_MAX).then_some("its data folder");
        }
        let Self::Io { source, .. } = self else { return None };
        let first: &(dyn Error + 'static) = &**source;
        std::iter::successors(Some(first), |cause| (*cause).source()).find_map(|cause| {
            if let Some(storage) = cause.downcast_ref::<StorageError>() {
                return storage.is_temporary().then_some("its storage account");
            }
            if let Some(cosmos) = cause.downcast_ref::<ConnectError>() {
                return cosmos.is_outage().then_some("its database");
            }
            cause.is::<Elapsed>().then_some("its storage account or its database")
        })
    }
}

/// Time in which a process that locks the data folder ends, if it belongs to a former host.
const FOLDER_WAIT_MAX: Duration = Duration::from_secs(30);

impl From<Vec<SettingMistake>> for StartError {
    fn from(mistakes: Vec<SettingMistake>) -> Self {
        Self::Settings(mistakes.iter().map(ToString::to_string).collect())
    }
}

pub(crate) fn io_error<E: Into<Box<dyn Error + Send + Sync>>>(
    doing: &'static str,
) -> impl FnOnce(E) -> StartError {
    move |source| StartError::Io { doing, source: source.into() }
}

fn lines(mistakes: &[String]) -> String {
    mistakes.iter().fold(String::new(), |text, mistake| text + "\n  " + mistake)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_data_folder_is_awaited_for_30_s() {
        let locked =
            StartError::from(OpenError::InUse { folder: ".turnwheel".into(), note: String::new() });
        let waits = |seconds| locked.find_awaited(Duration::from_secs(seconds));
        assert_eq!(waits(0), Some("its data folder"));
        assert_eq!(waits(29), Some("its data folder"));
        assert_eq!(waits(30), None);
        let foreign = StartError::from(OpenError::Foreign { file: "conversations.db".into() });
        assert_eq!(foreign.find_awaited(Duration::ZERO), None);
    }
}
