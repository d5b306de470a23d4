//! `veilgrad order`: does the model know which caption is true?

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use super::model::{Model, image_bar, open_images, print_failures};
use super::{DeviceArg, JsonArg, output};
use crate::data::augment::Transform;
use crate::error::{Error, Result};
use crate::eval::captioner::look_at_all;

/// Compositional test: one true caption of an image among altered ones, the score of each being its loss.
///
/// --captions is a file with a JSON object a line: {"image": "a.jpg", "captions": ["the true one", "an altered one", ...]};
/// images are relative to the file. The answer counts as right if the first caption has strictly the least loss.
#[derive(Debug, Args)]
pub struct Order {
    /// model.safetensors of a captioner.
    checkpoint: PathBuf,
    /// The questions.
    #[arg(long, value_name = "FILE")]
    captions: PathBuf,
    /// Images on the device at once.
    #[arg(long, value_name = "N", default_value_t = 16)]
    physical_batch: usize,
    #[command(flatten)]
    device: DeviceArg,
    #[command(flatten)]
    json: JsonArg,
}

/// One line of the questions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    image: PathBuf,
    captions: Vec<String>,
}

fn read(path: &Path) -> Result<Vec<Question>> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut all = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let fail = |what: String| Error::data(path, format!("line {}: {what}", i + 1));
        let question: Question = serde_json::from_str(line).map_err(|e| fail(e.to_string()))?;
        if question.captions.len() < 2 {
            return Err(fail("needs the true caption and one altered one at least".into()));
        }
        all.push(Question { image: folder.join(question.image), ..question });
    }
    match all.is_empty() {
        true => Err(Error::data(path, "holds no question")),
        false => Ok(all),
    }
}

impl Order {
    pub fn run(self) -> Result<()> {
        let questions = read(&self.captions)?;
        let model = Model::read(&self.checkpoint)?;
        let files: Vec<PathBuf> = questions.iter().map(|q| q.image.clone()).collect();
        let source = open_images(&files)?;
        let engine = self.device.open()?;
        let most = questions.iter().map(|q| q.captions.len()).max().unwrap_or(2);
        let mut eye =
            model.eye(engine.as_ref(), self.physical_batch.clamp(1, source.len().max(1) as usize))?;
        let mut judge = model.judge(engine.as_ref(), most, model.config.length)?;
        let bar = image_bar(source.as_ref(), self.json.json);
        let (mut right, mut all, mut chance) = (0usize, 0usize, 0.0);
        let report = look_at_all(&mut eye, source.clone(), Transform::Whole, |seen| {
            for (index, _, memory) in &seen {
                let question = &questions[*index as usize];
                let texts: Vec<_> =
                    question.captions.iter().map(|c| model.words.encode(c, model.config.length)).collect();
                let losses = judge.losses(memory, &texts)?;
                let is_right = losses[1..].iter().all(|&other| losses[0] < other);
                if self.json.json {
                    output::json(&json!({ "image": question.image, "right": is_right, "losses": losses }));
                }
                right += is_right as usize;
                all += 1;
                chance += 1.0 / losses.len() as f64;
            }
            bar.inc(seen.len() as u64);
            Ok(())
        })?;
        bar.finish_and_clear();
        print_failures(&report);
        let (share, chance) = (right as f64 / all.max(1) as f64, chance / all.max(1) as f64);
        if self.json.json {
            output::json(&json!({ "accuracy": share, "chance": chance, "questions": all }));
        } else {
            println!(
                "{:.1} % of {all} questions answered rightly ({:.1} % by chance)",
                100.0 * share,
                100.0 * chance
            );
        }
        Ok(())
    }
}
