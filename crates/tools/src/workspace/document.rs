//! Text extraction from Office documents (docx, xlsx, pptx) with bounded memory. Each is a zip
//! archive of XML parts.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufReader, Cursor, Read as _};

use bytes::Bytes;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use zip::ZipArchive;

/// Unpacked bytes of all parts together, because a small archive can unpack to a very large one.
const UNPACKED_BYTES_MAX: u64 = 64 * 1024 * 1024;
const TEXT_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Empty cells that are kept between two other cells.
const GAP_MAX: usize = 100;

/// Kind of a document that is not plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfficeKind {
    Word,
    Excel,
    PowerPoint,
    Pdf,
    OldOffice,
}

impl OfficeKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Word => "Word document",
            Self::Excel => "Excel workbook",
            Self::PowerPoint => "PowerPoint presentation",
            Self::Pdf => "PDF document",
            Self::OldOffice => "document of an Office format before 2007",
        }
    }

    /// Detects the kind by the first bytes, and for a zip archive by the names of its parts.
    pub(super) fn detect(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [b'%', b'P', b'D', b'F', b'-', ..] => Some(Self::Pdf),
            [0xd0, 0xcf, 0x11, 0xe0, 0xa1, 0xb1, 0x1a, 0xe1, ..] => Some(Self::OldOffice),
            [b'P', b'K', 3, 4, ..] => {
                let archive = ZipArchive::new(Cursor::new(bytes)).ok()?;
                let has = |part: &str| archive.index_for_name(part).is_some();
                [
                    ("word/document.xml", Self::Word),
                    ("xl/workbook.xml", Self::Excel),
                    ("ppt/presentation.xml", Self::PowerPoint),
                ]
                .into_iter()
                .find_map(|(part, kind)| has(part).then_some(kind))
            }
            _ => None,
        }
    }
}

/// Extracts the text: one line per paragraph or row, with tabs between cells. Blocks its thread.
///
/// # Errors
/// The text cannot be extracted. Return the reason to the model.
pub(super) fn extract_text(kind: OfficeKind, bytes: Bytes) -> Result<String, String> {
    let archive = match kind {
        OfficeKind::Pdf | OfficeKind::OldOffice => {
            return Err(
                "its text cannot be extracted here. Ask for it as text, Markdown, CSV or docx"
                    .to_owned(),
            );
        }
        OfficeKind::Word | OfficeKind::Excel | OfficeKind::PowerPoint => {
            ZipArchive::new(Cursor::new(bytes))
        }
    };
    let archive = archive.map_err(|_| DAMAGED.to_owned())?;
    let mut parts = DocumentParts { archive, unpacked_bytes_left: UNPACKED_BYTES_MAX };
    match kind {
        OfficeKind::Word => extract_word(&mut parts),
        OfficeKind::Excel => extract_excel(&mut parts),
        OfficeKind::PowerPoint => extract_power_point(&mut parts),
        OfficeKind::Pdf | OfficeKind::OldOffice => Ok(String::new()),
    }
}

const DAMAGED: &str = "it is damaged or encrypted";

struct DocumentParts {
    archive: ZipArchive<Cursor<Bytes>>,
    /// Bytes that may still be unpacked.
    unpacked_bytes_left: u64,
}

impl DocumentParts {
    /// Unpacks one part; empty if the archive has no such part.
    fn read_part(&mut self, name: &str) -> Result<Vec<u8>, String> {
        let mut unpacked = Vec::new();
        let Ok(part) = self.archive.by_name(name) else { return Ok(unpacked) };
        part.take(self.unpacked_bytes_left + 1)
            .read_to_end(&mut unpacked)
            .map_err(|_| DAMAGED.to_owned())?;
        self.unpacked_bytes_left = self
            .unpacked_bytes_left
            .checked_sub(unpacked.len() as u64)
            .ok_or_else(too_large_error)?;
        Ok(unpacked)
    }

    /// Names of the parts `{stem}{number}.xml`, in the order of their numbers.
    fn numbered_parts(&self, stem: &str) -> Vec<(u32, String)> {
        let number = |name: &str| name.strip_prefix(stem)?.strip_suffix(".xml")?.parse().ok();
        let mut found: Vec<(u32, String)> = self
            .archive
            .file_names()
            .filter_map(|name| {
                let name = name.ok()?;
                Some((number(&name)?, name.into_owned()))
            })
            .collect();
        found.sort_unstable();
        found
    }
}

fn too_large_error() -> String {
    "it unpacks to more than 64 MB, or has more than 10 MB of text: ask for a part of it".to_owned()
}

/// Calls `see` for each element and text of a part.
fn visit_part(
    part: &[u8],
    mut visitor: impl FnMut(PartEvent<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let mut reader = Reader::from_reader(BufReader::new(part));
    let mut buffer = Vec::new();
    loop {
        match reader.read_event_into(&mut buffer).map_err(|_| DAMAGED.to_owned())? {
            Event::Start(element) => visitor(PartEvent::Start(&element))?,
            Event::Empty(element) => {
                visitor(PartEvent::Start(&element))?;
                visitor(PartEvent::End(element.local_name().as_ref()))?;
            }
            Event::End(element) => visitor(PartEvent::End(element.local_name().as_ref()))?,
            Event::Text(text) => visitor(PartEvent::Text(&String::from_utf8_lossy(&text)))?,
            Event::CData(text) => visitor(PartEvent::Text(&String::from_utf8_lossy(&text)))?,
            Event::GeneralRef(reference) => {
                let name: &[u8] = &reference;
                let letter = match name {
                    b"amp" => Some('&'),
                    b"lt" => Some('<'),
                    b"gt" => Some('>'),
                    b"quot" => Some('"'),
                    b"apos" => Some('\''),
                    _ => reference.resolve_char_ref().ok().flatten(),
                };
                visitor(PartEvent::Text(letter.unwrap_or('\u{fffd}').encode_utf8(&mut [0; 4])))?;
            }
            Event::Eof => return Ok(()),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
        buffer.clear();
    }
}

enum PartEvent<'a> {
    Start(&'a BytesStart<'a>),
    End(&'a [u8]),
    Text(&'a str),
}

fn find_attribute(element: &BytesStart<'_>, name: &[u8]) -> Option<String> {
    let mut all = element.attributes().flatten();
    let found = all.find(|attribute| attribute.key.local_name().as_ref() == name)?;
    String::from_utf8(found.value.into_owned()).ok()
}

/// Appends the paragraphs of a Word or `PowerPoint` part. Text is in `t`, paragraphs are `p`, and
/// table rows are `tr` with cells `tc`.
fn append_paragraphs(part: &[u8], text: &mut String) -> Result<(), String> {
    let (mut is_text, mut cells) = (false, 0_u32);
    visit_part(part, |seen| {
        match seen {
            PartEvent::Start(element) => match element.local_name().as_ref() {
                b"t" => is_text = true,
                b"tab" if !is_text => text.push('\t'),
                b"br" | b"cr" => text.push(if cells > 0 { ' ' } else { '\n' }),
                b"tc" => cells += 1,
                _ => {}
            },
            PartEvent::End(name) => match name {
                b"t" => is_text = false,
                b"p" => text.push(if cells > 0 { ' ' } else { '\n' }),
                b"tc" => {
                    cells = cells.saturating_sub(1);
                    text.push('\t');
                }
                b"tr" => text.push('\n'),
                _ => {}
            },
            PartEvent::Text(words) if is_text => text.push_str(words),
            PartEvent::Text(_) => {}
        }
        if text.len() > TEXT_BYTES_MAX { Err(too_large_error()) } else { Ok(()) }
    })
}

fn extract_word(parts: &mut DocumentParts) -> Result<String, String> {
    let mut text = String::new();
    for name in ["word/document.xml", "word/footnotes.xml", "word/endnotes.xml"] {
        append_paragraphs(&parts.read_part(name)?, &mut text)?;
    }
    Ok(text)
}

fn extract_power_point(parts: &mut DocumentParts) -> Result<String, String> {
    let mut text = String::new();
    for (number, name) in parts.numbered_parts("ppt/slides/slide") {
        let _ = writeln!(text, "# Slide {number}");
        append_paragraphs(&parts.read_part(&name)?, &mut text)?;
        text.push('\n');
    }
    Ok(text)
}

fn extract_excel(parts: &mut DocumentParts) -> Result<String, String> {
    let shared = read_shared_strings(&parts.read_part("xl/sharedStrings.xml")?)?;
    let targets = read_targets(&parts.read_part("xl/_rels/workbook.xml.rels")?)?;
    let mut sheets = Vec::new();
    visit_part(&parts.read_part("xl/workbook.xml")?, |seen| {
        if let PartEvent::Start(element) = seen
            && element.local_name().as_ref() == b"sheet"
            && let (Some(name), Some(id)) =
                (find_attribute(element, b"name"), find_attribute(element, b"id"))
        {
            sheets.push((name, id));
        }
        Ok(())
    })?;
    let mut text = String::new();
    for (name, id) in sheets {
        let Some(target) = targets.get(&id) else { continue };
        let part = match target.strip_prefix('/') {
            Some(rooted) => rooted.to_owned(),
            None => format!("xl/{target}"),
        };
        let _ = writeln!(text, "# Sheet {name}");
        append_sheet(&parts.read_part(&part)?, &shared, &mut text)?;
        text.push('\n');
    }
    Ok(text)
}

fn read_shared_strings(part: &[u8]) -> Result<Vec<String>, String> {
    let mut strings: Vec<String> = Vec::new();
    let mut is_text = false;
    visit_part(part, |seen| {
        match seen {
            PartEvent::Start(element) => match element.local_name().as_ref() {
                b"si" => strings.push(String::new()),
                b"t" => is_text = true,
                _ => {}
            },
            PartEvent::End(b"t") => is_text = false,
            PartEvent::Text(words) if is_text => {
                if let Some(last) = strings.last_mut() {
                    last.push_str(words);
                }
            }
            PartEvent::End(_) | PartEvent::Text(_) => {}
        }
        Ok(())
    })?;
    Ok(strings)
}

/// Returns the part names by relationship id.
fn read_targets(part: &[u8]) -> Result<HashMap<String, String>, String> {
    let mut targets = HashMap::new();
    visit_part(part, |seen| {
        if let PartEvent::Start(element) = seen
            && let (Some(id), Some(target)) =
                (find_attribute(element, b"Id"), find_attribute(element, b"Target"))
        {
            targets.insert(id, target);
        }
        Ok(())
    })?;
    Ok(targets)
}

fn append_sheet(part: &[u8], shared: &[String], text: &mut String) -> Result<(), String> {
    let (mut is_value, mut is_shared) = (false, false);
    let mut value = String::new();
    let mut column = 0;
    visit_part(part, |seen| {
        match seen {
            PartEvent::Start(element) => match element.local_name().as_ref() {
                b"row" => column = 0,
                b"c" => {
                    is_shared = find_attribute(element, b"t").as_deref() == Some("s");
                    let at = find_attribute(element, b"r").and_then(|place| column_number(&place));
                    let at = at.unwrap_or(column + 1);
                    let tabs = at.saturating_sub(column.max(1)).min(GAP_MAX);
                    text.extend(std::iter::repeat_n('\t', tabs));
                    column = at;
                    value.clear();
                }
                b"v" | b"t" => is_value = true,
                _ => {}
            },
            PartEvent::End(b"v" | b"t") => is_value = false,
            PartEvent::End(b"c") => {
                let shared_string = value.parse::<usize>().ok().and_then(|index| shared.get(index));
                let shown = shared_string.filter(|_| is_shared).unwrap_or(&value);
                text.push_str(&shown.replace(['\n', '\t'], " "));
            }
            PartEvent::End(b"row") => text.push('\n'),
            PartEvent::Text(words) if is_value => value.push_str(words),
            PartEvent::End(_) | PartEvent::Text(_) => {}
        }
        if text.len() > TEXT_BYTES_MAX { Err(too_large_error()) } else { Ok(()) }
    })
}

/// Column number of a cell reference: `B12` is column 2.
fn column_number(place: &str) -> Option<usize> {
    let letters = place.bytes().take_while(u8::is_ascii_uppercase).take(4);
    let column = letters.fold(0, |sum, letter| sum * 26 + usize::from(letter - b'A') + 1);
    (column > 0).then_some(column)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    fn build_archive(parts: &[(&str, &str)]) -> Bytes {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, text) in parts {
            archive.start_file(*name, SimpleFileOptions::default()).unwrap();
            Write::write_all(&mut archive, text.as_bytes()).unwrap();
        }
        archive.finish().unwrap().into_inner().into()
    }

    fn extract_from_parts(parts: &[(&str, &str)]) -> (OfficeKind, Result<String, String>) {
        let bytes = build_archive(parts);
        let kind = OfficeKind::detect(&bytes).unwrap();
        (kind, extract_text(kind, bytes))
    }

    #[test]
    fn word_text_has_paragraphs_and_rows() {
        let document = "<w:document xmlns:w='x'><w:body><w:p><w:r><w:t>Tom &amp; J&#228;ck</w:t></w:r><w:r><w:tab/><w:t>here</w:t></w:r></w:p>\
            <w:tbl><w:tr><w:tc><w:p><w:t>a</w:t></w:p></w:tc><w:tc><w:p><w:t>b</w:t></w:p></w:tc></w:tr></w:tbl></w:body></w:document>";
        let (kind, text) = extract_from_parts(&[("word/document.xml", document)]);
        assert_eq!((kind, text.as_deref()), (OfficeKind::Word, Ok("Tom & Jäck\there\na \tb \t\n")));
    }

    #[test]
    fn excel_text_has_sheets_and_columns() {
        let (kind, text) = extract_from_parts(&[
            (
                "xl/workbook.xml",
                "<workbook><sheets><sheet name='Costs' r:id='rId7'/></sheets></workbook>",
            ),
            (
                "xl/_rels/workbook.xml.rels",
                "<Relationships><Relationship Id='rId7' Target='worksheets/sheet1.xml'/></Relationships>",
            ),
            (
                "xl/sharedStrings.xml",
                "<sst><si><t>item</t></si><si><r><t>pri</t></r><r><t>ce</t></r></si></sst>",
            ),
            (
                "xl/worksheets/sheet1.xml",
                "<worksheet><sheetData><row r='1'><c r='A1' t='s'><v>0</v></c><c r='C1' t='s'><v>1</v></c></row>\
                 <row r='2'><c r='A2' t='inlineStr'><is><t>pen</t></is></c><c r='C2'><f>1+1</f><v>2.5</v></c></row></sheetData></worksheet>",
            ),
        ]);
        assert_eq!(
            (kind, text.as_deref()),
            (OfficeKind::Excel, Ok("# Sheet Costs\nitem\t\tprice\npen\t\t2.5\n\n"))
        );
    }

    #[test]
    fn power_point_text_is_in_the_order_of_slides() {
        let slide =
            |words: &str| format!("<p:sld><a:p><a:r><a:t>{words}</a:t></a:r></a:p></p:sld>");
        let (kind, text) = extract_from_parts(&[
            ("ppt/presentation.xml", "<p/>"),
            ("ppt/slides/slide10.xml", &slide("last")),
            ("ppt/slides/slide2.xml", &slide("first")),
        ]);
        assert_eq!(
            (kind, text.as_deref()),
            (OfficeKind::PowerPoint, Ok("# Slide 2\nfirst\n\n# Slide 10\nlast\n\n"))
        );
    }

    #[test]
    fn document_that_unpacks_to_too_much_is_refused() {
        let bomb = format!("<w:document>{}</w:document>", " ".repeat(65 * 1024 * 1024));
        let bytes = build_archive(&[("word/document.xml", &bomb)]);
        assert!(bytes.len() < 1024 * 1024, "the archive is small");
        assert!(extract_text(OfficeKind::Word, bytes).unwrap_err().contains("64 MB"));
    }

    #[test]
    fn damaged_document_is_an_error() {
        let bytes = build_archive(&[("word/document.xml", "<w:document><w:p>")]);
        for end in [bytes.len() - 1, bytes.len() / 2, 30, 4] {
            let _ = extract_text(OfficeKind::Word, bytes.slice(..end));
        }
        assert_eq!(
            extract_text(OfficeKind::Word, Bytes::from_static(b"PK\x03\x04")).unwrap_err(),
            DAMAGED
        );
        let (_, broken) = extract_from_parts(&[("word/document.xml", "<w:p></w:q>")]);
        assert_eq!(broken.unwrap_err(), DAMAGED);
        assert_eq!(
            OfficeKind::detect(&build_archive(&[("a.txt", "x")])),
            None,
            "other zip archives are no document"
        );
    }
}
