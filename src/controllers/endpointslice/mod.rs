pub fn controller(_: &crate::controllers::ControllerContext) -> crate::controllers::Controller {
    crate::controllers::Controller::new("x")
}
