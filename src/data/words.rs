//! The words a captioner knows: BERT's whole vocabulary, or those of it that occur in a public list of texts.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::tokenizer::{CLS, PAD, SEP, Tokenizer, UNK};
use crate::error::{Error, Result};

/// The full stop, which may end a text.
const STOP: u32 = 1012;

/// From text to a model's ids and back. Padding is id 0 in every vocabulary.
#[derive(Clone, Debug)]
pub struct Words {
    tokenizer: Tokenizer,
    /// BERT's id of each of the model's ids, ascending; nothing where they are the same.
    kept: Option<Vec<u32>>,
}

/// A smaller vocabulary as it travels in a checkpoint.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// What the ids are of.
    of: String,
    /// BERT's ids, ascending.
    ids: Vec<u32>,
}

const BERT: &str = "bert-base-uncased";

impl Words {
    /// BERT's 30,522 words.
    ///
    /// # Errors
    /// [`Error::Data`] if the built-in vocabulary is damaged.
    pub fn bert() -> Result<Self> {
        Ok(Words { tokenizer: Tokenizer::bert()?, kept: None })
    }

    /// The words that occur in a PUBLIC file, one text a line, and the marks of padding, start, end and unknown words. Which
    /// words these are is stored in every checkpoint, so the file must never hold private captions.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Data`] for a file without a word.
    pub fn occurring_in(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        let words = Self::of_texts(text.lines())?;
        // The four marks and the full stop are always there.
        if words.len() <= 5 {
            return Err(Error::data(path, "holds no word: write one text a line"));
        }
        Ok(words)
    }

    /// The words of these public texts.
    ///
    /// # Errors
    /// As [`Words::bert`].
    pub fn of_texts<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Self> {
        let tokenizer = Tokenizer::bert()?;
        let mut kept = BTreeSet::from([PAD, UNK, CLS, SEP, STOP]);
        texts.for_each(|text| kept.extend(tokenizer.encode(text)));
        Ok(Words { tokenizer, kept: Some(kept.into_iter().collect()) })
    }

    /// As stored by [`Words::to_json`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for another vocabulary, or ids that are not ascending or leave out the marks.
    pub fn from_json(json: &str) -> Result<Self> {
        let fail = |why: &str| Error::invalid("vocabulary", "of the checkpoint", why);
        let stored: Stored = serde_json::from_str(json).map_err(|e| fail(&e.to_string()))?;
        let tokenizer = Tokenizer::bert()?;
        if stored.of != BERT {
            return Err(fail(&format!("is of {}, only {BERT} is known", stored.of)));
        }
        if stored.ids.len() == tokenizer.len() {
            return Ok(Words { tokenizer, kept: None });
        }
        let ascending = stored.ids.windows(2).all(|w| w[0] < w[1]);
        let known = stored.ids.last().is_some_and(|&id| (id as usize) < tokenizer.len());
        let marks = [PAD, UNK, CLS, SEP].iter().all(|m| stored.ids.binary_search(m).is_ok());
        if !(ascending && known && marks) {
            return Err(fail("must be ascending ids of BERT's words, with the marks 0, 100, 101 and 102"));
        }
        Ok(Words { tokenizer, kept: Some(stored.ids) })
    }

    /// For the metadata of a checkpoint.
    pub fn to_json(&self) -> String {
        let all = || (0..self.tokenizer.len() as u32).collect();
        let stored = Stored { of: BERT.into(), ids: self.kept.clone().unwrap_or_else(all) };
        serde_json::to_string(&stored).expect("plain data")
    }

    /// Words, V.
    pub fn len(&self) -> usize {
        self.kept.as_ref().map_or(self.tokenizer.len(), Vec::len)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The model's id of one of BERT's; that of unknown words if it was not kept.
    fn ours(&self, id: u32) -> u32 {
        let Some(kept) = &self.kept else { return id };
        let place = |id: u32| kept.binary_search(&id).ok().map(|i| i as u32);
        place(id).or_else(|| place(UNK)).expect("the mark of unknown words is always kept")
    }

    /// The mark that starts a text, [CLS].
    pub fn start(&self) -> u32 {
        self.ours(CLS)
    }

    /// The mark that ends a text, [SEP].
    pub fn end(&self) -> u32 {
        self.ours(SEP)
    }

    /// The id of words that are not known, [UNK].
    pub fn unknown(&self) -> u32 {
        self.ours(UNK)
    }

    /// What may end a text that is written word by word: [SEP], a full stop, padding.
    pub fn ends(&self) -> [u32; 3] {
        [self.end(), self.ours(STOP), self.ours(PAD)]
    }

    /// Ids of a text without marks. Marks that the text itself holds (a caption that says `[SEP]`) are unknown words.
    pub fn plain(&self, text: &str) -> Vec<u32> {
        let all = self.tokenizer.encode(text);
        let id = |&id: &u32| self.ours(if [PAD, CLS, SEP].contains(&id) { UNK } else { id });
        all[1..all.len() - 1].iter().map(id).collect()
    }

    /// `[CLS] text [SEP]`, cut to `length` ids with [SEP] last, then padded.
    pub fn encode(&self, text: &str, length: usize) -> Vec<u32> {
        self.frame(&self.plain(text), length)
    }

    /// Ids without marks between [CLS] and [SEP], cut to `length` ids with [SEP] last, then padded.
    pub fn frame(&self, ids: &[u32], length: usize) -> Vec<u32> {
        let mut out = vec![self.start()];
        out.extend(ids.iter().take(length.saturating_sub(2)));
        out.push(self.end());
        out.resize(length, self.ours(PAD));
        out
    }

    /// The text of ids; marks are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bert = |&id: &u32| match &self.kept {
            Some(kept) => kept.get(id as usize).copied().unwrap_or(UNK),
            None => id,
        };
        self.tokenizer.decode(&ids.iter().map(bert).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_words_keep_their_order_and_their_marks() {
        let words = Words::of_texts(["red heart", "green apple"].into_iter()).unwrap();
        assert_eq!(words.len(), 9);
        let ids = words.encode("red apple", 6);
        assert_eq!((ids[0], ids[3]), (words.start(), words.end()));
        assert_eq!(ids[4..], [0, 0]);
        assert_eq!(words.decode(&ids), "red apple");
        assert_eq!(words.plain("blue heart")[0], words.unknown());
        assert_eq!(words.encode("red red red red red", 4)[3], words.end());
        let back = Words::from_json(&words.to_json()).unwrap();
        assert_eq!((back.len(), back.encode("green heart", 8)), (9, words.encode("green heart", 8)));
    }

    #[test]
    fn the_whole_vocabulary_has_berts_ids() {
        let words = Words::bert().unwrap();
        assert_eq!(words.len(), 30_522);
        assert_eq!(
            (words.start(), words.end(), words.unknown(), words.ends()),
            (101, 102, 100, [102, 1012, 0])
        );
        assert_eq!(Words::from_json(&words.to_json()).unwrap().len(), 30_522);
    }

    #[test]
    fn damaged_vocabularies_are_refused() {
        for json in [
            "",
            "{}",
            r#"{"of":"other","ids":[0,100,101,102]}"#,
            r#"{"of":"bert-base-uncased","ids":[0,100,102,101]}"#,
            r#"{"of":"bert-base-uncased","ids":[0,100,101]}"#,
            r#"{"of":"bert-base-uncased","ids":[0,100,101,102,40000]}"#,
        ] {
            assert!(Words::from_json(json).is_err(), "{json}");
        }
    }
}
