//! SHA-1 (RFC 3174), which ZooKeeper's digest scheme uses. Do not use it for anything else.

const BLOCK_BYTES: usize = 64;

pub(super) fn sha1(message: &[u8]) -> [u8; 20] {
    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    // Padding: a 1 bit, zeros up to eight bytes before the end of a block, and the length in bits.
    let mut padded = message.to_vec();
    padded.push(0x80);
    let zeros = (BLOCK_BYTES * 2 - 8 - padded.len() % BLOCK_BYTES) % BLOCK_BYTES;
    padded.resize(padded.len() + zeros, 0);
    padded.extend_from_slice(&(8 * message.len() as u64).to_be_bytes());
    let (blocks, _) = padded.as_chunks::<BLOCK_BYTES>();
    for block in blocks {
        add_block(&mut state, block);
    }
    let mut hash = [0; 20];
    for (bytes, word) in hash.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    hash
}

fn add_block(state: &mut [u32; 5], block: &[u8; BLOCK_BYTES]) {
    let mut words = [0_u32; 80];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    for i in 16..80 {
        words[i] = (words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16]).rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for (i, word) in words.into_iter().enumerate() {
        let (mixed, constant) = match i {
            0..20 => ((b & c) | (!b & d), 0x5a82_7999),
            20..40 => (b ^ c ^ d, 0x6ed9_eba1),
            40..60 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6_u32),
        };
        let next = a.rotate_left(5).wrapping_add(mixed).wrapping_add(e).wrapping_add(constant).wrapping_add(word);
        (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
    }
    for (word, added) in state.iter_mut().zip([a, b, c, d, e]) {
        *word = word.wrapping_add(added);
    }
}
