//! The conversation of a request, which exists or is created with the request.

use turnwheel_conversation::head::Head;

#[derive(Debug)]
pub(crate) enum Target {
    /// The request creates it.
    New(Head),
    Existing(Head),
}

impl Target {
    pub(crate) fn head(&self) -> &Head {
        match self {
            Self::New(head) | Self::Existing(head) => head,
        }
    }

    /// The head that is created with the documents of the request.
    pub(crate) fn new_head(&self) -> Option<&Head> {
        match self {
            Self::New(head) => Some(head),
            Self::Existing(_) => None,
        }
    }
}
