//! `veilgrad classify`: which of these is it?

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;

use super::model::{Model, image_bar, open_images, print_failures};
use super::{DeviceArg, JsonArg, output};
use crate::data::augment::Transform;
use crate::data::{self, Source};
use crate::error::{Error, Result};
use crate::eval::captioner::{Memory, look_at_all};
use crate::eval::zero_shot::{ByLikelihood, ByTrie, Label, labels, labels_of_list};

/// How a class is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// The text with the least mean cross-entropy; cost grows with the number of synonyms.
    Likelihood,
    /// A walk through the tree of all synonyms; cost grows with the longest one.
    Trie,
}

/// Zero-shot classification: the label that the captioner would rather write.
///
/// Example: veilgrad classify out/captioner/model.safetensors photo.jpg --labels cat,dog,horse
#[derive(Debug, Args)]
pub struct Classify {
    /// model.safetensors of a captioner.
    checkpoint: PathBuf,
    /// Image files, one folder of images, or one set of shards.
    #[arg(value_name = "IMAGE", required_unless_present = "eval")]
    images: Vec<PathBuf>,
    /// A file with a class a line, synonyms separated by commas; or classes separated by commas.
    #[arg(long, value_name = "FILE|a,b,c")]
    labels: String,
    /// How a class is chosen.
    #[arg(long, value_enum, default_value = "likelihood")]
    method: Method,
    /// Text before every label. A model of BERT's whole vocabulary takes `this is a photo of a`, one of fewer words nothing,
    /// unless you say.
    #[arg(long)]
    prompt: Option<String>,
    /// Measure accuracy on labelled images: shards with .cls members, or a folder with a sub-folder per class.
    #[arg(long, value_name = "PATH", conflicts_with = "images")]
    eval: Option<PathBuf>,
    /// Images on the device at once.
    #[arg(long, value_name = "N", default_value_t = 16)]
    physical_batch: usize,
    #[command(flatten)]
    device: DeviceArg,
    #[command(flatten)]
    json: JsonArg,
}

/// One of the two methods, ready.
pub enum Classifier {
    Likelihood(Box<ByLikelihood>),
    Trie(Box<ByTrie>),
}

impl Classifier {
    /// The class of each image.
    pub fn classes(&mut self, memories: &[&Memory]) -> Result<Vec<usize>> {
        match self {
            Classifier::Trie(trie) => trie.classes(memories),
            Classifier::Likelihood(by) => memories
                .iter()
                .map(|memory| {
                    let losses = by.losses(memory)?;
                    let best = losses.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
                    Ok(best.map_or(0, |(class, _)| class))
                })
                .collect(),
        }
    }
}

impl Classify {
    pub fn run(self) -> Result<()> {
        if self.physical_batch == 0 {
            return Err(Error::invalid("--physical-batch", 0, "must be positive"));
        }
        let labels = read_labels(&self.labels)?;
        let model = Model::read(&self.checkpoint)?;
        let engine = self.device.open()?;
        let prompt = self.prompt.clone().unwrap_or_else(|| default_prompt(&model).to_owned());
        let source = match &self.eval {
            Some(path) => data::open(path)?.into(),
            None => open_images(&self.images)?,
        };
        let batch = self.physical_batch.min(source.len().max(1) as usize);
        let mut eye = model.eye(engine.as_ref(), batch)?;
        let mut classifier = classifier(&model, engine.as_ref(), self.method, &labels, &prompt, batch)?;
        let truth = match &self.eval {
            Some(path) => Some(label_of_class(source.classes(), &labels, path)?),
            None => None,
        };
        let bar = image_bar(source.as_ref(), self.json.json);
        let mut confusion = vec![vec![0usize; labels.len()]; labels.len()];
        let report = look_at_all(&mut eye, source.clone(), Transform::Whole, |seen| {
            let memories: Vec<_> = seen.iter().map(|(_, _, m)| m).collect();
            for ((index, class, _), found) in seen.iter().zip(classifier.classes(&memories)?) {
                match (&truth, class) {
                    (Some(truth), Some(class)) => confusion[truth[*class as usize]][found] += 1,
                    (Some(_), None) => {}
                    (None, _) => self.print(source.as_ref(), *index, &labels[found], &bar)?,
                }
            }
            bar.inc(seen.len() as u64);
            Ok(())
        })?;
        bar.finish_and_clear();
        print_failures(&report);
        if truth.is_some() {
            self.print_accuracy(&labels, &confusion);
        }
        Ok(())
    }

    fn print(
        &self,
        source: &dyn Source,
        index: u64,
        label: &Label,
        bar: &indicatif::ProgressBar,
    ) -> Result<()> {
        let name = source.record(index)?.name;
        if self.json.json {
            output::json(&json!({ "image": name, "class": label.name }));
        } else {
            bar.suspend(|| println!("{name}: {}", label.name));
        }
        Ok(())
    }

    fn print_accuracy(&self, labels: &[Label], confusion: &[Vec<usize>]) {
        let all: usize = confusion.iter().flatten().sum();
        let right: usize = (0..labels.len()).map(|i| confusion[i][i]).sum();
        let top1 = right as f64 / all.max(1) as f64;
        let names: Vec<&str> = labels.iter().map(|l| l.name.as_str()).collect();
        if self.json.json {
            output::json(&json!({ "top1": top1, "examples": all, "classes": names, "confusion": confusion }));
            return;
        }
        println!("top-1 {:.2} % of {all} (chance {:.2} %)", 100.0 * top1, 100.0 / labels.len() as f64);
        if labels.len() > 20 {
            println!("--json gives the confusion table of {} classes", labels.len());
            return;
        }
        let mut rows = vec![vec!["is \\ taken for".to_owned()]];
        rows[0].extend((1..=names.len()).map(|i| i.to_string()));
        for (i, (name, counts)) in names.iter().zip(confusion).enumerate() {
            let mut row = vec![format!("{} {name}", i + 1)];
            row.extend(counts.iter().map(usize::to_string));
            rows.push(row);
        }
        output::table(&rows);
    }
}

/// The labels that a flag names: a file's, or a list's.
///
/// # Errors
/// [`Error::Io`] and [`Error::Data`].
pub fn read_labels(flag: &str) -> Result<Vec<Label>> {
    let path = Path::new(flag);
    if path.is_file() || !flag.contains(',') {
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        return labels(&text, path);
    }
    labels_of_list(flag)
}

/// The published prompt, where the model knows its words.
pub fn default_prompt(model: &Model) -> &'static str {
    let prompt = "this is a photo of a";
    if model.words.plain(prompt).contains(&model.words.unknown()) { "" } else { prompt }
}

/// A classifier for `batch` images at once.
///
/// # Errors
/// [`Error::Invalid`] for a label that the model cannot write; the engine's.
pub fn classifier(
    model: &Model,
    engine: &dyn crate::record::Engine,
    method: Method,
    labels: &[Label],
    prompt: &str,
    batch: usize,
) -> Result<Classifier> {
    let length = model.config.length;
    Ok(match method {
        Method::Trie => {
            let pen = model.pen(engine, batch)?;
            Classifier::Trie(Box::new(ByTrie::new(pen, &model.words, labels, prompt, length)?))
        }
        Method::Likelihood => {
            let judge = |rows, tokens| model.judge(engine, rows, tokens);
            let by = ByLikelihood::new(&model.words, labels, prompt, length, judge)?;
            Classifier::Likelihood(Box::new(by))
        }
    })
}

/// The label of each class of a source: of the same name, or else of the same number.
///
/// # Errors
/// [`Error::Data`] if there are as many labels as classes by neither.
pub fn label_of_class(classes: &[String], labels: &[Label], path: &Path) -> Result<Vec<usize>> {
    let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    let by_name: Option<Vec<usize>> = classes
        .iter()
        .map(|class| labels.iter().position(|l| l.synonyms.iter().any(|s| same(s, class))))
        .collect();
    match by_name {
        Some(found) if !classes.is_empty() => Ok(found),
        _ if !classes.is_empty() && classes.len() == labels.len() => Ok((0..labels.len()).collect()),
        _ => {
            let what = format!(
                "has {} classes ({}), not the {} labels: give a label for each, in their order",
                classes.len(),
                classes.iter().take(12).cloned().collect::<Vec<_>>().join(", "),
                labels.len()
            );
            Err(Error::data(path, what))
        }
    }
}
