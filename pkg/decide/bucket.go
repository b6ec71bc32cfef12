package decide

import (
	"encoding/binary"
	"math/bits"
)

// Buckets is the number of buckets: a rollout has steps of a thousandth of a percent.
const Buckets = 100_000

// Bucket is where the unit falls among units of the same salt, from 0 to Buckets-1.
func Bucket(salt string, unit []byte) uint32 {
	s := saltHash(salt)
	return s.bucket(unit)
}

// salted is murmur3_x86_32 stopped behind salt and "\x00": the part of the hash that is
// the same for every unit.
type salted struct {
	h    uint32 // state after the whole words of the prefix
	rest uint32 // its last 0 to 3 bytes, little-endian
	n    uint32 // length of the prefix
}

func saltHash(salt string) salted {
	prefix := append([]byte(salt), 0)
	s := salted{n: uint32(len(prefix))}
	for len(prefix) >= 4 {
		s.h = murmurBody(s.h, binary.LittleEndian.Uint32(prefix))
		prefix = prefix[4:]
	}
	for i, b := range prefix {
		s.rest |= uint32(b) << (8 * i)
	}
	return s
}

func (s *salted) bucket(unit []byte) uint32 {
	return uint32((uint64(s.sum(unit)) * Buckets) >> 32)
}

// sum ends the hash with the unit. The unit's words are shifted into the
// accumulator behind the prefix's odd bytes, so no joined copy is needed. Salts
// that the service makes fill whole words with their separator: those need no
// shifting, which takes a third less.
func (s *salted) sum(unit []byte) uint32 {
	h, acc := s.h, uint64(s.rest)
	shift := (s.n & 3) * 8
	n := s.n + uint32(len(unit))
	if shift == 0 {
		for len(unit) >= 4 {
			h = murmurBody(h, binary.LittleEndian.Uint32(unit))
			unit = unit[4:]
		}
	}
	for len(unit) >= 4 {
		acc |= uint64(binary.LittleEndian.Uint32(unit)) << shift
		h = murmurBody(h, uint32(acc))
		acc >>= 32
		unit = unit[4:]
	}
	for _, b := range unit {
		acc |= uint64(b) << shift
		if shift += 8; shift == 32 {
			h = murmurBody(h, uint32(acc))
			acc, shift = 0, 0
		}
	}
	if shift > 0 {
		h ^= murmurWord(uint32(acc))
	}
	h ^= n
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	return h ^ h>>16
}

func murmurWord(k uint32) uint32 {
	return bits.RotateLeft32(k*0xcc9e2d51, 15) * 0x1b873593
}

func murmurBody(h, k uint32) uint32 {
	return bits.RotateLeft32(h^murmurWord(k), 13)*5 + 0xe6546b64
}
