//! The GPU engine on lavapipe, with the adapter's limits and with those that every device has. A machine without
//! lavapipe fails these tests: `apt install mesa-vulkan-drivers`.

mod faults;
mod probe;
mod work;

use std::sync::OnceLock;

use veilgrad::gpu::{GpuEngine, Selector};

/// The two devices, opened once.
pub fn engines() -> [&'static GpuEngine; 2] {
    static ENGINES: OnceLock<[GpuEngine; 2]> = OnceLock::new();
    let lavapipe = Selector::named("lavapipe");
    ENGINES
        .get_or_init(|| {
            [
                GpuEngine::open(&lavapipe).expect("adapter"),
                GpuEngine::open_portable(&lavapipe).expect("adapter"),
            ]
        })
        .each_ref()
}
