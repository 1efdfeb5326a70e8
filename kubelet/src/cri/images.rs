//! Images. Upstream: `cri-client/pkg/remote_image.go`.

use std::time::Duration;

use grpc::{Channel, Error};
use prost::Message;

use super::api;
use super::calls;

/// The calls to the runtime's `ImageService`. Cheap to clone.
#[derive(Clone)]
pub struct ImageService {
    channel: Channel,
    deadline: Duration,
}

impl ImageService {
    /// Creates a client of the image service. `deadline`: of each call but a pull.
    pub fn new(channel: Channel, deadline: Duration) -> ImageService {
        ImageService { channel, deadline }
    }

    /// Calls a method, for the macro `calls` and the methods below. `deadline`: `None` for none.
    async fn call<A: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
        deadline: Option<Duration>,
    ) -> Result<A, Error> {
        self.channel.call(method, request, deadline).await
    }

    calls! { "ImageService":
        list_images "ListImages" (api::ListImagesRequest) -> api::ListImagesResponse;
        image_status "ImageStatus" (api::ImageStatusRequest) -> api::ImageStatusResponse;
        remove_image "RemoveImage" (api::RemoveImageRequest) -> api::RemoveImageResponse;
        image_fs_info "ImageFsInfo" (api::ImageFsInfoRequest) -> api::ImageFsInfoResponse;
    }

    /// Pulls an image; it takes as long as the registry needs. Dropping the future cancels it.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn pull_image(
        &self,
        request: api::PullImageRequest,
    ) -> Result<api::PullImageResponse, Error> {
        self.call("runtime.v1.ImageService/PullImage", &request, None).await
    }
}
