//! Printing: numbers for people, JSON for machines, progress bars.

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Prints a document as JSON on one line.
pub fn json(value: &impl Serialize) {
    println!("{}", serde_json::to_string(value).expect("plain data"));
}

/// Bytes for people.
pub fn bytes(n: u64) -> String {
    let n = n as f64;
    match n {
        n if n >= 1e9 => format!("{:.2} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n => format!("{:.0} kB", n / 1e3),
    }
}

/// A bar over `len` units; hidden when `quiet` or when there is no terminal.
pub fn bar(len: u64, unit: &str, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let template = format!("{{bar:32}} {{pos}}/{{len}} {unit}  {{msg}}  {{eta}} left");
    let style = ProgressStyle::with_template(&template).expect("a fixed template");
    ProgressBar::new(len).with_style(style)
}

/// Prints rows in columns; the first row is the head, the first column is left-aligned.
pub fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(c, (cell, &w))| if c == 0 { format!("{cell:<w$}") } else { format!("{cell:>w$}") })
            .collect();
        println!("{}", cells.join("  ").trim_end());
    }
}
