// Package units holds the quantities that Tranche counts in and the only
// rounding rules between them.
//
// A GPU's memory is cut into equal shares (100 by default). Whatever a user
// asks for is rounded up to shares, so that nobody gets less than asked; a
// share's worth of memory is rounded down, so that the shares of one GPU never
// add up to more memory than it has. All arithmetic is on signed 64-bit
// integers; the largest product, MiB × shares, stays below 2^63 for every
// input that the parsers accept.
package units

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Shares counts equal parts of one GPU's memory. Differences may be negative:
// a node that shrank under running pods has less than nothing free.
type Shares int64

// MiB counts memory in units of 2^20 bytes.
type MiB int64

const (
	// DefaultSharesPerGPU is the grain at which rounding costs nothing
	// measurable on real workloads while a pod's status stays small.
	DefaultSharesPerGPU Shares = 100
	// MaxSharesPerGPU keeps the device list that a node plugin sends to the
	// kubelet far below gRPC's 4 MiB message limit (16 GPUs × 1000 × 65 B).
	MaxSharesPerGPU Shares = 1000
	// MaxMemory bounds what one GPU may be said to have or be asked for: 1 PiB.
	MaxMemory MiB = 1 << 30
)

// SharesForMemory returns the fewest shares of a GPU with gpu MiB, cut into
// perGPU shares, that hold need MiB. At least 1. The result exceeds perGPU
// when need exceeds gpu; what no int64 holds is math.MaxInt64. Both gpu and
// perGPU must be positive.
func SharesForMemory(need, gpu MiB, perGPU Shares) Shares {
	if int64(need) > math.MaxInt64/int64(perGPU) {
		return math.MaxInt64
	}
	s := ceilDiv(int64(need)*int64(perGPU), int64(gpu))
	return Shares(max(s, 1))
}

// MemoryForShares returns the whole MiB that s of perGPU shares of a GPU with
// gpu MiB stand for, rounded down. perGPU must be positive.
func MemoryForShares(s Shares, gpu MiB, perGPU Shares) MiB {
	return MiB(int64(s) * int64(gpu) / int64(perGPU))
}

// Fraction is a part of one GPU in (0,1], in 10^-18: exact for every text that
// ParseFraction accepts.
type Fraction int64

// one is a whole GPU; root is its square root, in which products with shares
// stay far below 2^63.
const (
	root          = 1_000_000_000
	one  Fraction = root * root
)

var decimal = regexp.MustCompile(`^[0-9]{0,3}(\.[0-9]{1,18})?$`)

// ErrFraction is wrapped by every error of ParseFraction.
var ErrFraction = errors.New("not a GPU fraction")

// ParseFraction reads a plain decimal such as "0.5" or "1", of up to 18 digits
// after the point. Anything outside (0,1] is an error that says what to write
// instead.
func ParseFraction(s string) (Fraction, error) {
	if s == "" || s == "." || !decimal.MatchString(s) {
		return 0, fmt.Errorf("%w: %q; write a decimal above 0 and at most 1, such as \"0.5\"", ErrFraction, s)
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return 0, fmt.Errorf("%w: %q; write a decimal above 0 and at most 1, such as \"0.5\"", ErrFraction, s)
	}
	if r.Sign() <= 0 {
		return 0, fmt.Errorf("%w: %q is nothing; write a decimal above 0 and at most 1, such as \"0.5\"", ErrFraction, s)
	}
	if r.Cmp(big.NewRat(1, 1)) > 0 {
		return 0, fmt.Errorf("%w: %q is more than one GPU; write at most \"1\", and for several GPUs add the annotation tranche.dev/gpu-count", ErrFraction, s)
	}
	r.Mul(r, new(big.Rat).SetInt64(int64(one)))
	return Fraction(r.Num().Int64()), nil // no remainder: 18 digits at most
}

// Shares returns f of perGPU shares, rounded up; between 1 and perGPU.
func (f Fraction) Shares(perGPU Shares) Shares {
	// f is upper×root + lower. To round up the lower part first changes
	// nothing, since the upper one is a whole number.
	upper, lower := int64(f)/root, int64(f)%root
	return Shares(ceilDiv(upper*int64(perGPU)+ceilDiv(lower*int64(perGPU), root), root))
}

// quantity is what ParseMemory hands to Kubernetes' parser: any amount that
// somebody may mean, in at most 24 digits and an exponent of two.
var quantity = regexp.MustCompile(`^[+-]?[0-9.]{1,24}([a-zA-Z]{0,2}|[eE][+-]?[0-9]{1,2})$`)

// WholeNumber returns q if it is a whole number that an int64 holds. It never
// writes out q's digits, of which there may be a thousand million: see
// ParseMemory. Anything else is false.
func WholeNumber(q resource.Quantity) (int64, bool) {
	// A Quantity from "1e999999999" is a short number with a scale.
	const digits = 40
	d := q.AsDec() // q is a copy
	if scale := int64(d.Scale()); scale > digits || scale < -digits || d.UnscaledBig().BitLen() > 4*digits {
		return 0, false
	}
	n := q.Value()
	return n, q.CmpInt64(n) == 0
}

// ErrMemory is wrapped by every error of ParseMemory.
var ErrMemory = errors.New("not an amount of GPU memory")

// ParseMemory reads a Kubernetes quantity such as "20Gi" or "512Mi" and
// returns it in MiB, rounded up. A number without a unit would mean bytes,
// which nobody wants of a GPU, so everything below 1Mi is an error.
//
// The text is bounded before it is parsed: a Quantity holds "1e999999999" as
// three numbers, and the first comparison writes out all its digits, which
// takes minutes and gigabytes. So does parsing "1e-999999999".
func ParseMemory(s string) (MiB, error) {
	if !quantity.MatchString(s) {
		return 0, fmt.Errorf("%w: %.40q; write a number with a unit, such as \"20Gi\" or \"512Mi\"", ErrMemory, s)
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return 0, fmt.Errorf("%w: %q; write a number with a unit, such as \"20Gi\" or \"512Mi\"", ErrMemory, s)
	}
	if q.Sign() <= 0 {
		return 0, fmt.Errorf("%w: %q is nothing; write how much is needed, such as \"20Gi\"", ErrMemory, s)
	}
	limit := resource.NewQuantity(int64(MaxMemory)<<20, resource.BinarySI)
	if q.Cmp(*limit) > 0 {
		return 0, fmt.Errorf("%w: %q is more than any GPU has; write what one GPU can hold, such as \"20Gi\"", ErrMemory, s)
	}
	bytes := q.Value() // rounds fractions of a byte up
	if bytes < 1<<20 {
		return 0, fmt.Errorf("%w: %q is less than 1Mi; did you leave out the unit? Write \"20Gi\" or \"512Mi\"", ErrMemory, s)
	}
	return MiB(ceilDiv(bytes, 1<<20)), nil
}

// ceilDiv divides non-negative a by positive b, rounding up; it saturates
// instead of wrapping.
func ceilDiv(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return a / b
	}
	return (a + b - 1) / b
}
