//! The engine on the host application's own wgpu device: private training shares the GPU with whatever else it does.
//! Needs an adapter: `cargo run --example 04_own_device -- lavapipe` takes the software one.
//!
//! Success looks like: `4 steps on the application's device, epsilon 3.00`.

use std::path::Path;

use veilgrad::gpu::{GpuEngine, wgpu};
use veilgrad::train::recipe::Recipe;
use veilgrad::train::run::{Run, RunOptions};

/// What a wgpu application does anyway.
async fn own_device(name: &str) -> Option<(wgpu::Device, wgpu::Queue)> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let instance = wgpu::Instance::new(descriptor);
    let adapters = instance.enumerate_adapters(wgpu::Backends::all()).await;
    let adapter = adapters.into_iter().find(|a| a.get_info().name.to_lowercase().contains(name))?;
    let wanted = wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..Default::default() };
    adapter.request_device(&wanted).await.ok()
}

fn main() -> veilgrad::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default().to_lowercase();
    // lavapipe calls itself llvmpipe.
    let name = if name == "lavapipe" { "llvmpipe".to_owned() } else { name };
    let Some((device, queue)) = pollster::block_on(own_device(&name)) else {
        return Err(veilgrad::Error::NoAdapter(format!("the application found none named {name:?}")));
    };

    // The one line.
    let engine = GpuEngine::from_device(device.clone(), queue.clone());

    let recipe = "model = { size = \"micro32\" }\ndata = { path = \"assets/emoji32/test-00000.tar\" }\n\
                  train = { steps = 4, batch = 8, physical_batch = 4, learning_rate = 5e-4 }\n\
                  privacy = { clipping_norm = 0.1, epsilon = 3.0 }";
    let recipe = Recipe::parse(recipe, Path::new("recipe"))?;
    let mut run = Run::new(&engine, recipe, RunOptions::default())?;
    run.train(|_| true)?;
    let (epsilon, _) = run.spent()?.expect("private");

    // The device is still the application's.
    let buffer = device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("the application's"),
        size: 16,
        usage: wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    queue.write_buffer(&buffer, 0, &[1; 16]);
    println!("{} steps on the application's device, epsilon {epsilon:.2}", run.step());
    Ok(())
}
