package soak

import "fmt"

// What the last third of the time may be over the middle one. The first third does not
// count: caches fill, pools reach their size, the collector finds its pace.
//
// Memory: the collector lets the heap swing by as much as is alive, and a sample falls
// anywhere in the swing; averaged over a third of the samples that leaves some percent.
// A leak of one kilobyte in each request would add 600 MB in ten minutes at 1,000/s.
//
// Goroutines and files: they follow the number of open connections, which the load keeps
// constant, and some that come and go. One leaked by each halt of a flag, two a second,
// would add 1,200 in ten minutes.
//
// Latency: on a machine that others use too, p99 doubles by itself.
const (
	memoryFactor, memorySlack   = 1.10, 24
	goroutineSlack              = 60
	fileSlack                   = 60
	latencyFactor, latencySlack = 2, 20
)

// grew compares the average of the last third with that of the middle third.
func grew(values []float64, factor, slack float64) string {
	third := len(values) / 3
	if third == 0 {
		return ""
	}
	middle, last := average(values[third:2*third]), average(values[2*third:])
	if last <= middle*factor+slack {
		return ""
	}
	return fmt.Sprintf("grew from %.1f to %.1f from the middle third of the time to the last", middle, last)
}

func average(values []float64) float64 {
	var sum float64
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
