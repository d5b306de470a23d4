//! Zero-shot classification by a captioner (DP-Cap, arXiv 2403.02506): which label would it rather write?

use std::collections::BTreeMap;
use std::path::Path;

use super::captioner::{Judge, Memory, Pen};
use crate::data::words::Words;
use crate::error::{Error, Result};

/// A class and the words for it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Label {
    /// The first synonym: what is printed.
    pub name: String,
    /// All of them, the name included.
    pub synonyms: Vec<String>,
}

/// Labels from text: one class a line, its synonyms separated by commas; empty lines and lines from `#` on do not count.
///
/// # Errors
/// [`Error::Data`] for fewer than two classes or a synonym of two of them.
pub fn labels(text: &str, path: &Path) -> Result<Vec<Label>> {
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    of_lists(lines.map(|line| line.split(',')), path)
}

/// Labels from a list on the command line: `cat,dog,horse`, a class each.
///
/// # Errors
/// As [`labels`].
pub fn labels_of_list(list: &str) -> Result<Vec<Label>> {
    of_lists(list.split(',').map(std::iter::once), Path::new("--labels"))
}

fn of_lists<'a, I>(lists: impl Iterator<Item = I>, path: &Path) -> Result<Vec<Label>>
where
    I: Iterator<Item = &'a str>,
{
    let mut all: Vec<Label> = Vec::new();
    for list in lists {
        let synonyms: Vec<String> =
            list.map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect();
        let Some(name) = synonyms.first().cloned() else { continue };
        if let Some(twice) = synonyms.iter().find(|s| all.iter().any(|l| l.synonyms.contains(s))) {
            return Err(Error::data(path, format!("`{twice}` names two classes: it cannot tell them apart")));
        }
        all.push(Label { name, synonyms });
    }
    match all.len() {
        0 | 1 => Err(Error::data(path, "names fewer than two classes")),
        _ => Ok(all),
    }
}

/// Every synonym as ids, with its class. One with a word that the model does not know is left out, unless it is the class's last.
///
/// # Errors
/// [`Error::Invalid`] for a class that the model cannot write, or a synonym too long for it.
fn candidates(
    labels: &[Label],
    words: &Words,
    prompt: &[u32],
    length: usize,
) -> Result<Vec<(usize, Vec<u32>)>> {
    let mut all = Vec::new();
    for (class, label) in labels.iter().enumerate() {
        for synonym in &label.synonyms {
            let ids = words.plain(synonym);
            if ids.is_empty() || ids.contains(&words.unknown()) {
                continue;
            }
            if prompt.len() + ids.len() + 2 > length {
                let why = format!("is too long: the model's texts have {length} tokens");
                return Err(Error::invalid("label", synonym, why));
            }
            all.push((class, ids));
        }
        if all.last().is_none_or(|(last, _)| *last != class) {
            let why = "holds words that this model does not know: add a synonym that it does";
            return Err(Error::invalid("label", &label.name, why));
        }
    }
    Ok(all)
}

/// Classes by likelihood: the class of the synonym whose text (prompt, synonym, end) has the least mean cross-entropy.
pub struct ByLikelihood {
    judge: Judge,
    texts: Vec<Vec<u32>>,
    classes: Vec<usize>,
    count: usize,
}

impl ByLikelihood {
    /// Prepares all texts; `judge` opens a judge for so many texts of so many tokens.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a label that the model cannot write; those of `judge`.
    pub fn new(
        words: &Words,
        labels: &[Label],
        prompt: &str,
        length: usize,
        judge: impl FnOnce(usize, usize) -> Result<Judge>,
    ) -> Result<Self> {
        let prompt = words.plain(prompt);
        let all = candidates(labels, words, &prompt, length)?;
        // No text needs more room than the longest, its two marks included.
        let longest = all.iter().map(|(_, ids)| prompt.len() + ids.len() + 2).max().unwrap_or(length);
        let judge = judge(all.len().min(64), longest)?;
        let texts = all.iter().map(|(_, ids)| words.frame(&[&prompt[..], ids].concat(), longest)).collect();
        let classes = all.into_iter().map(|(class, _)| class).collect();
        Ok(ByLikelihood { judge, texts, classes, count: labels.len() })
    }

    /// Per class the least mean cross-entropy of its synonyms, nats.
    ///
    /// # Errors
    /// The engine's.
    pub fn losses(&mut self, memory: &Memory) -> Result<Vec<f32>> {
        let losses = self.judge.losses(memory, &self.texts)?;
        let mut best = vec![f32::INFINITY; self.count];
        for (&class, &loss) in self.classes.iter().zip(&losses) {
            best[class] = best[class].min(loss);
        }
        Ok(best)
    }
}

/// A prefix tree over the synonyms' ids.
#[derive(Debug, Default)]
struct Node {
    children: BTreeMap<u32, Node>,
    /// Class of the synonym that ends here.
    class: Option<usize>,
}

/// Classes by a walk through the tree of all synonyms: at each node the likeliest of the tokens that go on, or end here. The
/// cost grows with the longest label, not with the number of classes.
pub struct ByTrie {
    pen: Pen,
    words: Words,
    prompt: Vec<u32>,
    root: Node,
}

impl ByTrie {
    /// Builds the tree.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a label that the model cannot write, or two classes of the same ids.
    pub fn new(pen: Pen, words: &Words, labels: &[Label], prompt: &str, length: usize) -> Result<Self> {
        let prompt = words.plain(prompt);
        let mut root = Node::default();
        for (class, ids) in candidates(labels, words, &prompt, length)? {
            let mut node = &mut root;
            for id in ids {
                node = node.children.entry(id).or_default();
            }
            if node.class.is_some_and(|other| other != class) {
                let name = &labels[class].name;
                return Err(Error::invalid("label", name, "is written like another class by this model"));
            }
            node.class = Some(class);
        }
        let prompt = [&[words.start()][..], &prompt].concat();
        Ok(ByTrie { pen, words: words.clone(), prompt, root })
    }

    /// The class of each image; as many images at once as the pen has rows.
    ///
    /// # Errors
    /// The engine's.
    pub fn classes(&mut self, memories: &[&Memory]) -> Result<Vec<usize>> {
        self.pen.begin(memories)?;
        let mut next = Vec::new();
        for &token in &self.prompt {
            next = self.pen.append(&vec![token; memories.len()])?;
        }
        let vocabulary = self.words.len();
        let mut nodes: Vec<&Node> = vec![&self.root; memories.len()];
        let mut found: Vec<Option<usize>> = vec![None; memories.len()];
        loop {
            let mut tokens = vec![0; memories.len()];
            for (row, values) in next.chunks(vocabulary).take(memories.len()).enumerate() {
                if found[row].is_some() {
                    continue;
                }
                let node = nodes[row];
                let score = |id: u32| values[id as usize];
                let best = |ids: &mut dyn Iterator<Item = u32>| {
                    ids.fold(None::<u32>, |b, id| match b {
                        Some(b) if !(score(id) > score(b)) => Some(b),
                        _ => Some(id),
                    })
                };
                let on = best(&mut node.children.keys().copied());
                let end = node.class.and_then(|_| best(&mut self.words.ends().into_iter()));
                match (on, end) {
                    (Some(on), None) => (tokens[row], nodes[row]) = (on, &node.children[&on]),
                    (Some(on), Some(end)) if score(on) > score(end) => {
                        (tokens[row], nodes[row]) = (on, &node.children[&on]);
                    }
                    _ => found[row] = node.class,
                }
            }
            if found.iter().all(Option::is_some) {
                return Ok(found.into_iter().flatten().collect());
            }
            next = self.pen.append(&tokens)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_synonyms() {
        let text = "# vehicles\ncar, automobile\n\nplane,  airplane , aeroplane\n";
        let all = labels(text, Path::new("l.txt")).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!((all[1].name.as_str(), all[1].synonyms.len()), ("plane", 3));
        assert_eq!(labels_of_list("cat, dog").unwrap()[1].name, "dog");
        for wrong in ["", "one", "a, b\nc, b\n"] {
            assert!(labels(wrong, Path::new("l.txt")).is_err(), "{wrong}");
        }
        assert!(labels_of_list("cat").is_err());
    }
}
