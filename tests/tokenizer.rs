//! The tokenizer against ids that the Python package `tokenizers` gave (tests/oracle/tokenizer.py).

use veilgrad::data::tokenizer::{CLS, PAD, SEP, Tokenizer};
use veilgrad::data::words::Words;

#[derive(serde::Deserialize)]
struct Row {
    text: String,
    ids: Vec<u32>,
}

#[test]
fn hostile_texts_have_the_published_ids() {
    let rows: Vec<Row> = serde_json::from_str(include_str!("fixtures/tokenizer.json")).unwrap();
    assert!(rows.len() > 25);
    let bert = Tokenizer::bert().unwrap();
    for row in rows {
        assert_eq!(bert.encode(&row.text), row.ids, "{:?}", row.text.chars().take(60).collect::<String>());
    }
}

#[test]
fn texts_come_back() {
    let bert = Tokenizer::bert().unwrap();
    for text in ["red heart", "unaffable embeddings", "a man, with a hat.", "flag: chile"] {
        let ids = bert.encode(text);
        assert_eq!((ids[0], *ids.last().unwrap()), (CLS, SEP));
        assert_eq!(bert.decode(&ids).replace(" : ", ": ").replace(" :", ":"), text);
    }
}

#[test]
fn a_mark_inside_a_text_cannot_end_or_pad_it() {
    // Whoever writes captions must not decide where a text ends or which tokens count.
    let words = Words::bert().unwrap();
    let ids = words.plain("red [SEP] heart [PAD] [CLS]");
    assert!(!ids.iter().any(|id| [CLS, SEP, PAD].contains(id)), "{ids:?}");
    assert_eq!(words.encode(&"word ".repeat(500), 40).len(), 40);
}
