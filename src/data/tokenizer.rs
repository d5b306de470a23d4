//! BERT's uncased WordPiece tokenizer (Devlin et al. 2019, arXiv 1810.04805), by the crate `tokenizers`, with the vocabulary
//! built in: ids are those of the published `bert-base-uncased`.

use std::sync::Arc;

use tokenizers::AddedToken;
use tokenizers::decoders::wordpiece::WordPiece as Decoder;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;

use crate::error::{Error, Result};

/// Padding, [PAD].
pub const PAD: u32 = 0;
/// A word that cannot be spelt, [UNK].
pub const UNK: u32 = 100;
/// The start of a text, [CLS].
pub const CLS: u32 = 101;
/// The end of a text, [SEP].
pub const SEP: u32 = 102;
/// A masked word, [MASK]; neither system uses it.
pub const MASK: u32 = 103;

const VOCABULARY: &str = include_str!("../../assets/vocab/bert-base-uncased-vocab.txt");

/// From text to BERT's ids and back. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer(Arc<tokenizers::Tokenizer>);

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} words)", self.len())
    }
}

impl Tokenizer {
    /// `bert-base-uncased`: 30,522 pieces, lower case, accents removed.
    ///
    /// # Errors
    /// [`Error::Data`] if the built-in vocabulary is damaged.
    pub fn bert() -> Result<Self> {
        let fail = |e: &dyn std::fmt::Display| Error::data("bert-base-uncased", e.to_string());
        let pieces = VOCABULARY.lines().zip(0u32..).map(|(piece, id)| (piece.to_owned(), id));
        let model = WordPiece::builder()
            .vocab(pieces.collect::<ahash::AHashMap<_, _>>())
            .unk_token("[UNK]".into())
            .max_input_chars_per_word(100)
            .build()
            .map_err(|e| fail(&e))?;
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        tokenizer
            .with_normalizer(Some(BertNormalizer::default()))
            .with_pre_tokenizer(Some(BertPreTokenizer))
            .with_post_processor(Some(BertProcessing::new(("[SEP]".into(), SEP), ("[CLS]".into(), CLS))))
            .with_decoder(Some(Decoder::default()));
        let marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
        let marks = marks.map(|mark| AddedToken::from(mark, true));
        tokenizer.add_special_tokens(&marks);
        for (mark, id) in
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].into_iter().zip([PAD, UNK, CLS, SEP, MASK])
        {
            if tokenizer.token_to_id(mark) != Some(id) {
                return Err(fail(&format!("{mark} is not id {id}")));
            }
        }
        Ok(Tokenizer(Arc::new(tokenizer)))
    }

    /// Pieces of the vocabulary.
    pub fn len(&self) -> usize {
        self.0.get_vocab_size(true)
    }

    /// Whether the vocabulary is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ids of a text: `[CLS]`, its pieces, `[SEP]`. A word of over 100 characters, or with one that no piece has, is `[UNK]`.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        match self.0.encode_fast(text, true) {
            Ok(encoding) => encoding.get_ids().to_vec(),
            // Only truncation and models that lack an unknown mark can fail; neither is here.
            Err(_) => vec![CLS, UNK, SEP],
        }
    }

    /// The text of ids, pieces joined; marks are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.0.decode(ids, true).unwrap_or_default()
    }
}
