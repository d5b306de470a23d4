//! Image files to RGB: JPEG, PNG, WebP and the first frame of a GIF. Orientation from EXIF is applied, alpha is laid on
//! white, grey, palette, CMYK and 16-bit pixels become 8-bit RGB. Never panics.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::{DynamicImage, ImageDecoder, ImageReader, Limits, RgbImage};

/// Most pixels that are decoded; a file may claim any size.
pub const MAX_PIXELS: u64 = 64 << 20;

/// Decodes a file.
///
/// # Errors
/// What is wrong with it, for a report.
pub fn decode(bytes: &[u8]) -> Result<RgbImage, String> {
    // The decoders are others' code fed with anyone's bytes: the last line of defence.
    catch_unwind(AssertUnwindSafe(|| decode_inner(bytes)))
        .unwrap_or_else(|_| Err("the decoder failed".into()))
}

fn decode_inner(bytes: &[u8]) -> Result<RgbImage, String> {
    if bytes.is_empty() {
        return Err("is empty".into());
    }
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| e.to_string())?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(8 * MAX_PIXELS);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|e| e.to_string())?;
    let (w, h) = decoder.dimensions();
    if w == 0 || h == 0 {
        return Err(format!("has no pixels ({w} x {h})"));
    }
    if w as u64 * h as u64 > MAX_PIXELS {
        return Err(format!("claims {w} x {h} pixels, over the limit of {MAX_PIXELS}"));
    }
    let orientation = decoder.orientation().unwrap_or(image::metadata::Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(|e| e.to_string())?;
    image.apply_orientation(orientation);
    Ok(on_white(image))
}

/// Lays transparent pixels on white.
fn on_white(image: DynamicImage) -> RgbImage {
    if !image.color().has_alpha() {
        return image.into_rgb8();
    }
    let rgba = image.into_rgba8();
    RgbImage::from_fn(rgba.width(), rgba.height(), |x, y| {
        let [r, g, b, a] = rgba.get_pixel(x, y).0;
        let lay = |c: u8| ((c as u32 * a as u32 + 255 * (255 - a as u32) + 127) / 255) as u8;
        image::Rgb([lay(r), lay(g), lay(b)])
    })
}
