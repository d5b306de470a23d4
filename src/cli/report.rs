//! `report.html`: one file without network access: what ran, its guarantee, curves and pictures.

use std::fmt::Write;
use std::path::Path;

use base64::Engine as _;
use plotters::prelude::*;

use crate::error::{Error, Result};
use crate::files::write_atomic;

/// Parts of a report, in the order they are shown.
#[derive(Default)]
pub struct Report {
    title: String,
    body: String,
}

impl Report {
    /// A report of this title.
    pub fn new(title: &str) -> Self {
        Report { title: title.to_owned(), body: String::new() }
    }

    /// A heading.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(text));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escape(text));
    }

    /// A table; the first row is its head.
    pub fn table(&mut self, rows: &[Vec<String>]) {
        self.body.push_str("<table>\n");
        for (i, row) in rows.iter().enumerate() {
            let tag = if i == 0 { "th" } else { "td" };
            let cells: String = row.iter().map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect();
            let _ = writeln!(self.body, "<tr>{cells}</tr>");
        }
        self.body.push_str("</table>\n");
    }

    /// Preformatted text.
    pub fn code(&mut self, text: &str) {
        let _ = writeln!(self.body, "<pre>{}</pre>", escape(text));
    }

    /// A curve. Points that are not finite are left out.
    ///
    /// # Errors
    /// [`Error::Device`] if it cannot be drawn.
    pub fn curve(&mut self, title: &str, x_label: &str, points: &[(f64, f64)]) -> Result<()> {
        let points: Vec<(f64, f64)> =
            points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
        if points.len() < 2 {
            return Ok(());
        }
        let svg =
            draw(title, x_label, &points).map_err(|e| Error::Device(format!("drawing {title}: {e}")))?;
        self.body.push_str(&svg);
        self.body.push('\n');
        Ok(())
    }

    /// A PNG file, embedded.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read.
    pub fn picture(&mut self, path: &Path, caption: &str) -> Result<()> {
        self.png(&std::fs::read(path).map_err(|e| Error::io(path, e))?, caption);
        Ok(())
    }

    /// A PNG, embedded.
    pub fn png(&mut self, bytes: &[u8], caption: &str) {
        let data = base64::engine::general_purpose::STANDARD.encode(bytes);
        let _ = writeln!(
            self.body,
            "<figure><img alt=\"{0}\" src=\"data:image/png;base64,{data}\"><figcaption>{0}</figcaption></figure>",
            escape(caption)
        );
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let html = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>{STYLE}</style>\
             </head><body>\n<h1>{0}</h1>\n{1}</body></html>\n",
            escape(&self.title),
            self.body
        );
        write_atomic(path, html.as_bytes())
    }
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem}table{border-collapse:collapse}\
th,td{padding:.3rem .8rem;border-bottom:1px solid #ddd;text-align:left}td:not(:first-child),th:not(:first-child){text-align:right}\
pre{background:#f5f5f5;padding:1rem;overflow:auto}img{max-width:100%;image-rendering:pixelated}\
figcaption{color:#555;font-size:.9rem}svg{max-width:100%;height:auto;display:block;margin:1rem 0}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Lower and upper bound with a margin; never an empty range.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
    let margin = if high > low { 0.05 * (high - low) } else { 0.5 * high.abs().max(1e-9) };
    (low - margin, high + margin)
}

fn draw(
    title: &str,
    x_label: &str,
    points: &[(f64, f64)],
) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (760, 300)).into_drawing_area();
        root.fill(&WHITE)?;
        let (x0, x1) = bounds(points.iter().map(|p| p.0));
        let (y0, y1) = bounds(points.iter().map(|p| p.1));
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 18))
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(x0..x1, y0..y1)?;
        chart.configure_mesh().x_desc(x_label).light_line_style(WHITE).draw()?;
        chart.draw_series(LineSeries::new(points.iter().copied(), RGBColor(31, 93, 168).stroke_width(2)))?;
        root.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_file_without_network() {
        let folder = tempfile::tempdir().unwrap();
        let picture = folder.path().join("a.png");
        image::RgbImage::new(4, 4).save(&picture).unwrap();
        let mut report = Report::new("a <b>");
        report.heading("h");
        report.table(&[vec!["x".into(), "y".into()], vec!["1".into(), "<2>".into()]]);
        report.curve("loss", "step", &[(0.0, 1.0), (1.0, f64::NAN), (2.0, 0.5)]).unwrap();
        report.picture(&picture, "tiles").unwrap();
        let path = folder.path().join("report.html");
        report.write(&path).unwrap();
        let html = std::fs::read_to_string(&path).unwrap();
        assert!(
            html.contains("a &lt;b&gt;")
                && html.contains("&lt;2&gt;")
                && html.contains("data:image/png;base64,")
        );
        assert!(html.contains("<svg") && !html.contains("src=\"http") && !html.contains("NaN"));
    }
}
