//! Procedural images, drawn on the device that trains: any number of them, no files, a key instead of a data set.
//!
//! The host draws [`PROGRAM`] numbers per image from a keyed stream; one kernel turns them into pixels. Stands for
//! the procedural image programs of Baradad et al. 2022 (arXiv 2211.16412), on which ViP is pre-trained, with
//! programs of our own: [`FAMILIES`], each with a free palette, placement and light, alone or two joined by a mask.

mod dice;
mod field;
mod lane;
mod noise;
mod paint;
mod pattern;
mod program;
mod shape;
mod tile;

use image::{Rgb, RgbImage};

pub use program::{FAMILIES, PROGRAM};

use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::record::{DType, Engine, Layout, Recording, Slice};
use crate::rng::{Key, Purpose};
use paint::draw;

/// A sample at the edge of a cell falls on either side, by rounding.
static DRAW: Kernel =
    Kernel { jumps: 0.005, ..crate::kernel!("data/synthetic", "draw", draw, paint::draw_fast) };

/// What a family makes of a point: palette coordinate, shade, gloss.
type Ink<L> = [L; 3];

/// The shape parameters of a family.
type Shape<L> = [L; 6];

/// How images are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawing {
    /// Height and width in pixels.
    pub size: usize,
    /// Samples per pixel along each axis: 1 has jagged edges, 2 is usual.
    pub samples: usize,
    /// Normalise by ImageNet's pixel mean and deviation, as models expect; otherwise values are in [0, 1].
    pub normalise: bool,
}

impl Drawing {
    /// Images as a model trains on them: 2 x 2 samples per pixel, normalised.
    pub fn for_training(size: usize) -> Self {
        Drawing { size, samples: 2, normalise: true }
    }

    /// Floats of one image: 3 x size x size.
    pub fn pixels(&self) -> usize {
        3 * self.size * self.size
    }

    /// Records the drawing of `batch` images: `program` is (batch, [`PROGRAM`]), `images` is written whole,
    /// (batch, 3, size, size).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size or sample count of 0 (or over 4096 and 16); [`Error::Kernel`] if a slice has
    /// another length.
    pub fn record(&self, rec: &mut Recording, program: Slice, images: Slice, batch: usize) -> Result<()> {
        if !(1..=4096).contains(&self.size) {
            return Err(Error::invalid("size", self.size, "synthetic images have 1 to 4096 pixels a side"));
        }
        if !(1..=16).contains(&self.samples) {
            return Err(Error::invalid("samples", self.samples, "1 to 16 samples per pixel along each axis"));
        }
        for (name, slice, len) in
            [("program", program, batch * PROGRAM), ("images", images, batch * self.pixels())]
        {
            if slice.len != len {
                let what = format!("binding {name} has {} elements, {batch} images need {len}", slice.len);
                return Err(Error::kernel(DRAW.to_string(), what));
            }
        }
        rec.dispatch(&DRAW)
            .bind("program", program)
            .bind("images", images)
            .n("batch", batch)
            .n("size", self.size)
            .n("samples", self.samples)
            .param("normalise", u32::from(self.normalise))
            .groups(batch * (self.size * self.size).div_ceil(64))
    }
}

/// A source of programs: every step has its own images, the same for the same key.
#[derive(Clone, Debug)]
pub struct Synthetic {
    key: Key,
}

impl Synthetic {
    /// The source of a run; derives the key of [`Purpose::Synthetic`] from the run's key.
    pub fn new(run: &Key) -> Self {
        Synthetic { key: run.derive(Purpose::Synthetic) }
    }

    /// Programs of the images `0..count` of a step, (count, [`PROGRAM`]). An image's program depends on the key,
    /// the step and its index alone, so a physical batch of any size gives the same images.
    pub fn programs(&self, step: u64, count: usize) -> Vec<f32> {
        self.range(step, 0, count)
    }

    /// Programs of the images `first..first + count` of a step.
    pub fn range(&self, step: u64, first: usize, count: usize) -> Vec<f32> {
        (first..first + count)
            .flat_map(|image| program::random(&mut self.key.item(step, image as u64)))
            .collect()
    }

    /// The program of one image, with one layer of a given family.
    ///
    /// # Panics
    /// If there is no such family: they are `0..FAMILIES.len()`.
    pub fn of_family(&self, family: usize, step: u64, image: u64) -> [f32; PROGRAM] {
        assert!(family < FAMILIES.len(), "family {family} of {}", FAMILIES.len());
        program::single(&mut self.key.item(step, image), family)
    }
}

/// Draws programs at once, for looking at: (count, 3, size, size).
///
/// # Errors
/// As [`Drawing::record`], and those of the engine.
pub fn render(engine: &dyn Engine, programs: &[f32], drawing: Drawing) -> Result<Vec<f32>> {
    let count = programs.len() / PROGRAM;
    // Short dispatches: about a megapixel each.
    let batch = (1_usize << 20).div_ceil(drawing.size.max(1).pow(2)).clamp(1, count.max(1));
    let mut layout = Layout::default();
    let program = layout.add("program", DType::F32, batch * PROGRAM);
    let images = layout.add("images", DType::F32, batch * drawing.pixels());
    let mut rec = Recording::new();
    drawing.record(&mut rec, program, images, batch)?;
    let mut session = engine.open(&layout)?;
    let run = session.prepare(&rec)?;
    let mut out = Vec::with_capacity(count * drawing.pixels());
    for chunk in programs.chunks(batch * PROGRAM) {
        let mut padded = chunk.to_vec();
        padded.resize(batch * PROGRAM, 0.0);
        session.write(program, &padded)?;
        session.run(run)?;
        let drawn = session.read(images)?;
        out.extend_from_slice(&drawn[..chunk.len() / PROGRAM * drawing.pixels()]);
    }
    Ok(out)
}

/// A picture of `rows` x `cols` images of `size` pixels with a thin gap: the families in order, row by row, as many
/// of each as fit evenly (at least one, if there are that many tiles).
///
/// # Errors
/// As [`render`]; [`Error::Invalid`] for an empty sheet.
pub fn contact_sheet(
    engine: &dyn Engine,
    key: &Key,
    size: usize,
    rows: usize,
    cols: usize,
) -> Result<RgbImage> {
    let tiles = rows * cols;
    if tiles == 0 {
        return Err(Error::invalid("sheet", format!("{rows}x{cols}"), "needs at least one row and column"));
    }
    let source = Synthetic::new(key);
    let shown = FAMILIES.len().min(tiles);
    let programs: Vec<f32> =
        (0..tiles).flat_map(|i| source.of_family(i * shown / tiles, 0, i as u64)).collect();
    let drawing = Drawing { size, samples: 3, normalise: false };
    let images = render(engine, &programs, drawing)?;
    Ok(sheet(&images, size, cols))
}

/// Lays out images (count, 3, size, size) with values in [0, 1] in rows of `cols`.
pub fn sheet(images: &[f32], size: usize, cols: usize) -> RgbImage {
    let gap = (size / 32).max(1);
    let pixels = size * size;
    let rows = (images.len() / (3 * pixels)).div_ceil(cols);
    let extent = |n: usize| (n * (size + gap) + gap) as u32;
    let mut out = RgbImage::from_pixel(extent(cols), extent(rows), Rgb([24, 24, 24]));
    for (i, image) in images.chunks_exact(3 * pixels).enumerate() {
        let (left, top) = (extent(i % cols), extent(i / cols));
        for p in 0..pixels {
            let byte = |c: usize| (image[c * pixels + p].clamp(0.0, 1.0) * 255.0).round() as u8;
            let (x, y) = ((p % size) as u32, (p / size) as u32);
            out.put_pixel(left + x, top + y, Rgb([byte(0), byte(1), byte(2)]));
        }
    }
    out
}
