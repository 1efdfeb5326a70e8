//! Decoding of objects, and the names of those that cannot be decoded.

use std::error::Error as StdError;
use std::sync::Arc;

use super::DecodeError;
use super::any::AnyObject;
use crate::objects::{Encoded, Form, Identity, Object};

type Decoded = Result<Arc<dyn AnyObject>, Box<dyn StdError + Send + Sync>>;

/// The decoding function of one kind. A reflector knows nothing else about the kind.
#[derive(Clone, Copy)]
pub struct Decoder {
    pub(super) preferred: Form,
    decode: fn(&Encoded) -> Decoded,
}

/// An object that cannot be decoded.
#[derive(Debug)]
pub(super) struct Undecoded {
    /// `None` when not even its name can be read.
    pub identity: Option<Identity>,
    pub error: DecodeError,
}

/// A received object, decoded where that is possible.
pub(super) type Received = Result<Arc<dyn AnyObject>, Undecoded>;

impl Decoder {
    /// Returns the decoder of objects of type `T`. They are requested in protobuf where `T` has a
    /// table of its fields, and decoded from either form.
    pub fn for_type<T: Object>() -> Decoder {
        let preferred = if T::MESSAGE.is_some() { Form::Protobuf } else { Form::Json };
        let decode = |object: &Encoded| -> Decoded { Ok(Arc::new(object.decode::<T>()?)) };
        Decoder { preferred, decode }
    }

    /// Decodes `object`; an error names it as well as its bytes allow. `resource`: its name in
    /// errors.
    pub(super) fn decode(&self, resource: &str, object: &Encoded) -> Received {
        (self.decode)(object).map_err(|cause| {
            let identity = Identity::decode(object);
            let what = match &identity {
                Some(known) => format!("{resource} {}", known.key()),
                None => {
                    let length = object.bytes.len();
                    format!("{resource}: an object of {length} bytes without readable metadata")
                }
            };
            Undecoded { identity, error: DecodeError { what, cause } }
        })
    }
}

impl Undecoded {
    /// Returns the resource version; 0 when it cannot be read.
    pub fn version(&self) -> u64 {
        self.identity.as_ref().map_or(0, |known| known.resource_version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Pod;

    #[test]
    fn a_decode_error_names_the_object() {
        let decode = |json: &str| {
            let decoded = Decoder::for_type::<Pod>().decode("pods", &Encoded::json(json));
            decoded.map(drop).unwrap_err()
        };
        let json = r#"{"metadata":{"namespace":"a","name":"b","resourceVersion":"7"},"spec":[1]}"#;
        let undecoded = decode(json);
        let error = undecoded.error.to_string();
        assert!(error.starts_with("pods a/b: cannot be decoded: "), "{error}");
        assert_eq!((undecoded.version(), undecoded.identity.is_some()), (7, true));
        let undecoded = decode("{");
        let error = undecoded.error.to_string();
        assert!(error.starts_with("pods: an object of 1 bytes without readable "), "{error}");
        assert_eq!((undecoded.version(), undecoded.identity), (0, None));
    }
}
