//! Hand-made minimal ELF files for tests: they declare requirements and contain no code.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

/// Contents of the file. The default fits Azure and needs glibc 2.34.
#[derive(Clone, Copy, Debug)]
pub struct SampleElf {
    /// `e_machine`.
    pub machine: u16,
    pub loader: Option<&'static str>,
    pub libraries: &'static [&'static str],
    /// Symbol versions required of the first library; empty: the file has no version table.
    pub versions: &'static [&'static str],
}

impl Default for SampleElf {
    fn default() -> Self {
        Self {
            machine: 62,
            loader: Some(super::LOADER),
            libraries: &["libc.so.6", "libm.so.6", "libgcc_s.so.1"],
            versions: &["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.14"],
        }
    }
}

impl SampleElf {
    pub fn to_bytes(self) -> Vec<u8> {
        let mut strings = vec![0];
        let mut name = |text: &str| {
            let at = u32::try_from(strings.len()).unwrap();
            strings.extend(text.as_bytes());
            strings.push(0);
            at
        };
        let libraries: Vec<u32> = self.libraries.iter().map(|text| name(text)).collect();
        let versions: Vec<u32> = self.versions.iter().map(|text| name(text)).collect();
        let loader = self.loader.map_or(Vec::new(), |text| [text.as_bytes(), b"\0"].concat());

        // DT_NEEDED for each library, DT_NULL at the end.
        let mut dynamic = Vec::new();
        for at in &libraries {
            dynamic.extend(1_u64.to_le_bytes());
            dynamic.extend(u64::from(*at).to_le_bytes());
        }
        dynamic.extend([0; 16]);

        // One Verneed of 16 bytes, then a Vernaux of 16 for each version.
        let mut needed = Vec::new();
        if let (Some(file), false) = (libraries.first(), versions.is_empty()) {
            needed.extend(1_u16.to_le_bytes());
            needed.extend(u16::try_from(versions.len()).unwrap().to_le_bytes());
            needed.extend(file.to_le_bytes());
            needed.extend(16_u32.to_le_bytes());
            needed.extend(0_u32.to_le_bytes());
            for (index, at) in versions.iter().enumerate() {
                let next = if index + 1 < versions.len() { 16_u32 } else { 0 };
                needed.extend([0; 8]);
                needed.extend(at.to_le_bytes());
                needed.extend(next.to_le_bytes());
            }
        }
        self.write_file(&loader, &strings, &dynamic, &needed)
    }

    /// Writes the header, program headers, the four parts and the section headers.
    fn write_file(&self, loader: &[u8], strings: &[u8], dynamic: &[u8], needed: &[u8]) -> Vec<u8> {
        let segments = u16::from(!loader.is_empty());
        let mut at = 64 + 56 * u64::from(segments);
        let mut section_span = |bytes: &[u8]| {
            let size = bytes.len().next_multiple_of(8) as u64;
            at += size;
            (at - size, bytes.len() as u64)
        };
        let loader_at = section_span(loader);
        let strings_at = section_span(strings);
        let dynamic_at = section_span(dynamic);
        let needed_at = section_span(needed);
        let sections_at = section_span(&[]).0;

        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend(3_u16.to_le_bytes());
        file.extend(self.machine.to_le_bytes());
        file.extend(1_u32.to_le_bytes());
        for long in [0x1000, 64, sections_at] {
            file.extend(u64::to_le_bytes(long));
        }
        file.extend(0_u32.to_le_bytes());
        for short in [64, 56, segments, 64, 4, 1] {
            file.extend(u16::to_le_bytes(short));
        }
        if segments == 1 {
            // PT_INTERP
            file.extend([3_u32.to_le_bytes(), 4_u32.to_le_bytes()].concat());
            for long in [loader_at.0, 0, 0, loader_at.1, loader_at.1, 1] {
                file.extend(long.to_le_bytes());
            }
        }
        for part in [loader, strings, dynamic, needed] {
            file.extend(part);
            file.resize(file.len().next_multiple_of(8), 0);
        }
        // None, SHT_STRTAB, SHT_DYNAMIC, SHT_GNU_VERNEED; the last two refer to the strings.
        for (kind, section_span, link) in [
            (0_u32, (0, 0), 0_u32),
            (3, strings_at, 0),
            (6, dynamic_at, 1),
            (if needed.is_empty() { 0 } else { 0x6fff_fffe }, needed_at, 1),
        ] {
            file.extend([0_u32.to_le_bytes(), kind.to_le_bytes()].concat());
            for long in [0, 0, section_span.0, section_span.1] {
                file.extend(long.to_le_bytes());
            }
            file.extend([link.to_le_bytes(), 1_u32.to_le_bytes()].concat());
            for long in [8_u64, 0] {
                file.extend(long.to_le_bytes());
            }
        }
        file
    }
}
