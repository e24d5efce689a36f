//! Errors of the start of the service.

use crate::host::HostError;
use crate::settings::mistake::Mistake;
use crate::store::embedded::OpenError;

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
    Io { doing: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
}

impl StartError {
    /// One line for each mistake.
    pub(super) fn into_mistakes(self) -> Vec<String> {
        match self {
            Self::Agents(mistakes) | Self::Settings(mistakes) => mistakes,
            Self::Host(_) | Self::Folder(_) | Self::Arguments(_) | Self::Io { .. } => {
                vec![self.to_string()]
            }
        }
    }
}

impl From<Vec<Mistake>> for StartError {
    fn from(mistakes: Vec<Mistake>) -> Self {
        Self::Settings(mistakes.iter().map(ToString::to_string).collect())
    }
}

pub(super) fn io_error<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    doing: &'static str,
) -> impl FnOnce(E) -> StartError {
    move |source| StartError::Io { doing, source: source.into() }
}

fn lines(mistakes: &[String]) -> String {
    mistakes.iter().fold(String::new(), |text, mistake| text + "\n  " + mistake)
}
