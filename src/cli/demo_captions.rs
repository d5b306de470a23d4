//! The second part of the demo: a captioner, trained privately from the synthetic encoder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::classify::{Method, classifier, label_of_class, read_labels};
use super::model::Model;
use super::report::Report;
use super::{output, pretrain};
use crate::data::augment::Transform;
use crate::data::{self, Source};
use crate::error::{Error, Result};
use crate::eval::captioner::{Memory, look_at_all};
use crate::record::Engine;
use crate::train::recipe::Recipe;
use crate::train::run::{Run, RunOptions};

/// Held-out emoji whose captions are shown.
const SHOWN: usize = 10;

/// What the captioner wrote and chose, before or after its private training.
struct Look {
    captions: Vec<String>,
    /// Share of all held-out images that were put into their group.
    accuracy: f64,
}

/// What the second part found.
pub struct Captions {
    names: Vec<String>,
    pictures: Vec<Vec<u8>>,
    before: Look,
    after: Look,
    epsilon: f64,
    chance: f64,
}

/// Trains a captioner by `recipe`, whose vocabulary and data lie in `assets`, from the encoder in `init`; looks at held-out
/// emoji before and after.
///
/// # Errors
/// Those of data, training and device.
pub fn run(
    engine: &dyn Engine,
    recipe: Recipe,
    assets: &Path,
    init: PathBuf,
    out: &Path,
    quiet: bool,
) -> Result<Captions> {
    std::fs::create_dir_all(out).map_err(|e| Error::io(out, e))?;
    let test: Arc<dyn Source> = data::open(&assets.join("emoji32/test-00000.tar"))?.into();
    let labels = assets.join("labels/emoji-groups.txt");
    let options = RunOptions { out: Some(out.to_path_buf()), init: Some(init), ..RunOptions::default() };
    let mut run = Run::new(engine, recipe, options)?;
    // The first checkpoint holds the model before any training.
    let model = out.join("model.safetensors");
    let (before, shown) = look(engine, &model, &test, &labels)?;
    pretrain::train(&mut run, out, quiet)?;
    let (after, _) = look(engine, &model, &test, &labels)?;
    let mut names = Vec::new();
    let mut pictures = Vec::new();
    for index in shown {
        let record = test.record(index)?;
        names.push(record.caption.unwrap_or_default());
        pictures.push(record.image);
    }
    let epsilon = run.spent()?.map_or(f64::NAN, |(epsilon, _)| epsilon);
    let chance = 1.0 / test.classes().len().max(1) as f64;
    Ok(Captions { names, pictures, before, after, epsilon, chance })
}

/// Captions of a few images, spread over the source, and the accuracy over all; and which images these are.
fn look(engine: &dyn Engine, path: &Path, test: &Arc<dyn Source>, labels: &Path) -> Result<(Look, Vec<u64>)> {
    let model = Model::read(path)?;
    let labels = read_labels(&labels.to_string_lossy())?;
    let truth = label_of_class(test.classes(), &labels, path)?;
    let mut eye = model.eye(engine, 64)?;
    let mut classes = classifier(&model, engine, Method::Trie, &labels, "", 64)?;
    let stride = (test.len() / SHOWN as u64).max(1);
    let mut kept: Vec<(u64, Memory)> = Vec::new();
    let (mut right, mut all) = (0, 0);
    look_at_all(&mut eye, test.clone(), Transform::Whole, |seen| {
        let memories: Vec<&Memory> = seen.iter().map(|(_, _, m)| m).collect();
        for ((index, class, memory), found) in seen.iter().zip(classes.classes(&memories)?) {
            if let Some(class) = class {
                all += 1;
                right += (truth[*class as usize] == found) as usize;
            }
            if index % stride == 0 && kept.len() < SHOWN {
                kept.push((*index, memory.clone()));
            }
        }
        Ok(())
    })?;
    let memories: Vec<&Memory> = kept.iter().map(|(_, m)| m).collect();
    let captions = model.pen(engine, SHOWN)?.greedy(&memories)?.into_iter().map(|c| c.text).collect();
    let accuracy = right as f64 / all.max(1) as f64;
    Ok((Look { captions, accuracy }, kept.iter().map(|(i, _)| *i).collect()))
}

impl Captions {
    /// Captions in a table, and the zero-shot accuracies.
    pub fn print(&self) {
        let row = |a: &str, b: &str, c: &str| vec![a.to_owned(), b.to_owned(), c.to_owned()];
        let mut rows = vec![row("emoji", "before", "after")];
        for ((name, before), after) in self.names.iter().zip(&self.before.captions).zip(&self.after.captions)
        {
            let short = |text: &str| text.chars().take(32).collect::<String>();
            rows.push(row(name, &short(before), &short(after)));
        }
        println!("\n== captions of held-out emoji, before and after training at epsilon {:.2}", self.epsilon);
        output::table(&rows);
        println!("{}", self.verdict());
    }

    fn verdict(&self) -> String {
        format!(
            "zero-shot, nine groups: {:.1} % before, {:.1} % after, {:.1} % by chance",
            100.0 * self.before.accuracy,
            100.0 * self.after.accuracy,
            100.0 * self.chance
        )
    }

    /// Pictures with their captions.
    pub fn report(&self, report: &mut Report) {
        report.heading("Captions of held-out emoji");
        report.paragraph(&format!("Trained at epsilon {:.2}; {}.", self.epsilon, self.verdict()));
        let texts = self.names.iter().zip(&self.before.captions).zip(&self.after.captions);
        for (picture, ((name, before), after)) in self.pictures.iter().zip(texts) {
            report.png(
                picture,
                &format!("{name} - before: \u{201c}{before}\u{201d}, after: \u{201c}{after}\u{201d}"),
            );
        }
    }

    /// For machines.
    pub fn json(&self) -> serde_json::Value {
        json!({
            "names": self.names, "before": self.before.captions, "after": self.after.captions,
            "zero_shot_before": self.before.accuracy, "zero_shot_after": self.after.accuracy,
            "chance": self.chance, "epsilon": self.epsilon,
        })
    }
}
