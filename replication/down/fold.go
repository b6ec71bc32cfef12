package down

import (
	"cmp"

	"skerry/replication"
)

// fold tells, while a lane is read in order, when what has been read is whole transactions.
//
// Without gaps that is simple: at the last position of each transaction. A gap means that
// a document has changed again since: its older version was taken out of the stream, or
// was no longer in the database when the publisher read it. The transaction in front of
// us is then incomplete, and is made whole only by a newer version further on, which may
// belong to another transaction, which may itself have gaps. It is whole again when,
// since the last gap was met,
//
//   - everything has been read that the stream held at some moment after the gap was met:
//     a version is taken out of the stream only by one that is already in it; and
//   - the position has been reached that was the database's highest when the publisher
//     read the document behind the gap (its Through): a version that the publisher did
//     not find any more had been replaced at or below it.
//
// The obvious rule, to stop at any transaction's last position, would serve half of the
// transactions around every gap.
//
// A tombstone past its age leaves the stream with nothing in its place. The marker whose
// floor says so is in the stream before, so it is read before what has the gap is whole;
// see missed.
type fold struct {
	at      replication.Position // the last position read
	last    bool                 // it was the last of its transaction
	through replication.Position // to be reached, because of a gap
	gap     bool                 // met since the stream was last asked for its end
	end     uint64               // the stream's end as last asked for; to be reached
	first   replication.Position // the last position before the first gap since all was whole; 0: none
}

// read takes the next document, which has the stream sequence seq and a position past the
// last. It returns whether all that has been read so far is whole transactions. lastSeq
// asks the stream for its last sequence; it is called only when the answer matters, which
// is never in a stream that is read as it grows.
func (f *fold) read(d *replication.Document, seq uint64, lastSeq func() (uint64, error)) (bool, error) {
	if d.Position != f.at+1 {
		f.gap = true
		f.through = max(f.through, d.Through)
		f.first = cmp.Or(f.first, f.at)
	}
	f.at, f.last = d.Position, d.Position == d.TxLast
	return f.whole(seq, lastSeq)
}

// missed tells, before the document at p is read, whether transactions that are still
// incomplete may lack a tombstone at or below the floor. Before the first document of
// all, nothing can be missing.
func (f *fold) missed(p, floor replication.Position) bool {
	from := f.first
	if from == 0 && p != f.at+1 {
		from = f.at
	}
	return from != 0 && from < floor
}

// whole tells, behind the message seq, whether all that has been read is whole. That
// message may have been passed over: a stream can end with one that is older than what
// stands before it.
func (f *fold) whole(seq uint64, lastSeq func() (uint64, error)) (bool, error) {
	if !f.last || f.at < f.through || seq < f.end {
		return false, nil
	}
	if f.gap {
		end, err := lastSeq()
		if err != nil {
			return false, err
		}
		f.gap, f.end = false, end
	}
	if seq < f.end {
		return false, nil
	}
	f.first = 0
	return true, nil
}
