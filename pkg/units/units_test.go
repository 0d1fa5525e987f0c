package units_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/units"
)

func TestParseFractionAcceptsDecimalsAboveZeroUpToOne(t *testing.T) {
	cases := map[string]units.Shares{ // of 100
		"1": 100, "1.0": 100, "001": 100, "1.000000000000000000": 100, "0.5": 50, ".5": 50, "0.25": 25, "0.333": 34, "0.01": 1,
		"0.010": 1, "0.011": 2, "0.000000000000000001": 1, "0.99": 99, "0.990000000000000001": 100, "0.999999999999999999": 100,
	}
	for text, want := range cases {
		f, err := units.ParseFraction(text)
		if err != nil {
			t.Errorf("ParseFraction(%q): %v", text, err)
			continue
		}
		if got := f.Shares(100); got != want {
			t.Errorf("%q of 100 shares is %d, want %d", text, got, want)
		}
	}
}

func TestParseFractionSaysWhatToWrite(t *testing.T) {
	const decimal = `write a decimal above 0 and at most 1, such as "0.5"`
	cases := map[string]string{
		"": decimal, ".": decimal, "abc": decimal, "0,5": decimal, "1/2": decimal, "50%": decimal, "5e-1": decimal, "+0.5": decimal, "-0.5": decimal,
		" 0.5": decimal, "0.5 ": decimal, "1.": decimal, "0x1": decimal, "NaN": decimal, "Inf": decimal, "١": decimal, "0.5\n": decimal,
		"0.1234567890123456789": decimal, "1000": decimal,
		"0": "is nothing; " + decimal, "0.0": "is nothing; " + decimal, "000": "is nothing; " + decimal,
		"1.5": "is more than one GPU", "2": "is more than one GPU", "999": "is more than one GPU", "1.000000000000000001": "is more than one GPU",
	}
	for text, want := range cases {
		_, err := units.ParseFraction(text)
		if !errors.Is(err, units.ErrFraction) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("ParseFraction(%q): %v; want %q", text, err, want)
		}
	}
}

// Whoever asks for a fraction gets at least that, and not a share more than it
// takes.
func TestFractionsAreRoundedUpExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perGPU := units.Shares(rapid.Int64Range(1, int64(units.MaxSharesPerGPU)).Draw(t, "perGPU"))
		text := rapid.StringMatching(`[01]?\.[0-9]{1,18}`).Draw(t, "text")
		if rapid.Bool().Draw(t, "near") { // some shares, rounded off
			near := big.NewRat(rapid.Int64Range(0, int64(perGPU)).Draw(t, "shares"), int64(perGPU))
			text = near.FloatString(rapid.IntRange(1, 18).Draw(t, "digits"))
		}
		exact, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("big.Rat does not read %q", text)
		}
		f, err := units.ParseFraction(text)
		if allowed := exact.Sign() > 0 && exact.Cmp(big.NewRat(1, 1)) <= 0; (err == nil) != allowed {
			t.Fatalf("ParseFraction(%q): %v", text, err)
		}
		if err != nil {
			return
		}
		got := f.Shares(perGPU)
		exact.Mul(exact, big.NewRat(int64(perGPU), 1))
		if got < 1 || got > perGPU || big.NewRat(int64(got), 1).Cmp(exact) < 0 || big.NewRat(int64(got-1), 1).Cmp(exact) >= 0 {
			t.Fatalf("%s of %d shares is %d, exactly %s", text, perGPU, got, exact.FloatString(20))
		}
	})
}

func TestParseMemoryRoundsUpToMiB(t *testing.T) {
	cases := map[string]units.MiB{
		"20Gi": 20480, "512Mi": 512, "1Mi": 1, "1.5Gi": 1536, "20G": 19074, "1048577": 2, "1Pi": units.MaxMemory, "0.5Gi": 512, "1e9": 954, "1024Ki": 1,
	}
	for text, want := range cases {
		if got, err := units.ParseMemory(text); err != nil || got != want {
			t.Errorf("ParseMemory(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestParseMemorySaysWhatToWrite(t *testing.T) {
	cases := map[string]string{
		"": "write a number with a unit", "abc": "write a number with a unit", "20 Gi": "write a number with a unit", "20GB": "write a number with a unit",
		"-1Gi": "is nothing", "0": "is nothing", "0Gi": "is nothing",
		"20": "did you leave out the unit?", "20480": "did you leave out the unit?", "1023Ki": "did you leave out the unit?", "100m": "did you leave out the unit?",
		"1025Ti": "is more than any GPU has", "9Ei": "is more than any GPU has", "1e30": "is more than any GPU has",
	}
	for text, want := range cases {
		_, err := units.ParseMemory(text)
		if !errors.Is(err, units.ErrMemory) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("ParseMemory(%q): %v; want %q", text, err, want)
		}
	}
}

func FuzzParseMemory(f *testing.F) {
	for _, s := range []string{"20Gi", "1.5Gi", "-1", "1e9", "9999999999Ei", "0.000001Ki", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := units.ParseMemory(s)
		if err != nil {
			if m != 0 || !errors.Is(err, units.ErrMemory) {
				t.Errorf("ParseMemory(%q) = %d, %v", s, m, err)
			}
			return
		}
		q := resource.MustParse(s)
		enough, tooMuch := resource.NewQuantity(int64(m)<<20, resource.BinarySI), resource.NewQuantity(int64(m-1)<<20, resource.BinarySI)
		if m < 1 || m > units.MaxMemory || enough.Cmp(q) < 0 || tooMuch.Cmp(q) >= 0 {
			t.Errorf("ParseMemory(%q) = %d MiB", s, m)
		}
	})
}

func FuzzParseFraction(f *testing.F) {
	for _, s := range []string{"0.5", "1", ".333", "1.0000000000000001", "-1", "abc", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		fraction, err := units.ParseFraction(s)
		if err != nil {
			if fraction != 0 || !errors.Is(err, units.ErrFraction) {
				t.Errorf("ParseFraction(%q) = %d, %v", s, fraction, err)
			}
			return
		}
		if got := fraction.Shares(100); got < 1 || got > 100 {
			t.Errorf("%q of 100 shares is %d", s, got)
		}
	})
}

func TestSharesForMemory(t *testing.T) {
	cases := []struct {
		need, gpu units.MiB
		perGPU    units.Shares
		want      units.Shares
	}{
		{need: 20480, gpu: 81920, perGPU: 100, want: 25},
		{need: 20481, gpu: 81920, perGPU: 100, want: 26},
		{need: 20480, gpu: 24576, perGPU: 100, want: 84},
		{need: 1, gpu: 81920, perGPU: 100, want: 1},
		{need: 0, gpu: 81920, perGPU: 100, want: 1},
		{need: 81920, gpu: 81920, perGPU: 100, want: 100},
		{need: 81921, gpu: 81920, perGPU: 100, want: 101},
		{need: units.MaxMemory, gpu: 1, perGPU: units.MaxSharesPerGPU, want: units.Shares(units.MaxMemory) * units.MaxSharesPerGPU},
		{need: math.MaxInt64, gpu: 1, perGPU: 1, want: math.MaxInt64},
		{need: math.MaxInt64, gpu: 81920, perGPU: 100, want: math.MaxInt64},
	}
	for _, tc := range cases {
		if got := units.SharesForMemory(tc.need, tc.gpu, tc.perGPU); got != tc.want {
			t.Errorf("SharesForMemory(%d, %d, %d) = %d, want %d", tc.need, tc.gpu, tc.perGPU, got, tc.want)
		}
	}
}

// The memory of the shares that were counted for it is enough, that of one
// share less is not, and all shares of a GPU are not more than the GPU.
func TestMemoryAndSharesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpu := units.MiB(rapid.Int64Range(1, int64(units.MaxMemory)).Draw(t, "gpu"))
		need := units.MiB(rapid.Int64Range(1, int64(gpu)).Draw(t, "need"))
		perGPU := units.Shares(rapid.Int64Range(1, int64(units.MaxSharesPerGPU)).Draw(t, "perGPU"))
		s := units.SharesForMemory(need, gpu, perGPU)
		// Exactly: s/perGPU of gpu >= need.
		if s < 1 || s > perGPU || int64(s)*int64(gpu) < int64(need)*int64(perGPU) || s > 1 && int64(s-1)*int64(gpu) >= int64(need)*int64(perGPU) {
			t.Fatalf("%d of %d MiB is %d of %d shares", need, gpu, s, perGPU)
		}
		a := units.Shares(rapid.Int64Range(0, int64(perGPU)).Draw(t, "a"))
		if sum := units.MemoryForShares(a, gpu, perGPU) + units.MemoryForShares(perGPU-a, gpu, perGPU); sum > gpu {
			t.Fatalf("%d and %d shares of %d MiB are %d MiB", a, perGPU-a, gpu, sum)
		}
	})
}
