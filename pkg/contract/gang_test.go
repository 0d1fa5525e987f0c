package contract_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// member is a pod with the given label, annotation and native group; "-" leaves
// one out.
func member(gang, minCount, group string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}, Annotations: map[string]string{}}}
	if gang != "-" {
		pod.Labels[contract.GangLabel] = gang
	}
	if minCount != "-" {
		pod.Annotations[contract.GangMinCountAnnotation] = minCount
	}
	if group != "-" {
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new(group)}
	}
	return pod
}

func TestGangOfReadsWhatPodsDeclare(t *testing.T) {
	long := strings.Repeat("a", 63)
	cases := map[string]struct {
		pod          *corev1.Pod
		wantName     string
		wantMinCount int32
		wantNative   bool
		// wantError is part of the sentence.
		wantError string
	}{
		"nothing":                       {pod: member("-", "-", "-")},
		"label and annotation":          {pod: member("train", "4", "-"), wantName: "train", wantMinCount: 4},
		"label alone":                   {pod: member("train", "-", "-"), wantName: "train"},
		"a dotted name":                 {pod: member("train.v1-2", "1", "-"), wantName: "train.v1-2", wantMinCount: 1},
		"the longest name":              {pod: member(long, "-", "-"), wantName: long},
		"the largest gang":              {pod: member("train", "100000", "-"), wantName: "train", wantMinCount: 100000},
		"a native group":                {pod: member("-", "-", "native"), wantName: "native", wantNative: true},
		"a native group and the label":  {pod: member("train", "4", "native"), wantName: "train", wantMinCount: 4},
		"a native group and its size":   {pod: member("-", "3", "native"), wantName: "native", wantMinCount: 3, wantNative: true},
		"a native group without a name": {pod: member("-", "-", "")},

		"a name too long":          {pod: member(long+"a", "-", "-"), wantError: "has 64 characters; write a name of at most 63"},
		"no name":                  {pod: member("", "4", "-"), wantError: "label tranche.dev/gang is empty; write the name"},
		"capitals":                 {pod: member("Train", "4", "-"), wantError: `label tranche.dev/gang is "Train", which cannot name a Gang object; write a name of lower-case letters`},
		"an underscore":            {pod: member("a_b", "-", "-"), wantError: "cannot name a Gang object"},
		"annotation alone":         {pod: member("-", "4", "-"), wantError: "annotation tranche.dev/gang-min-count says how large a gang is, but no label names the gang; add the label tranche.dev/gang"},
		"a sign":                   {pod: member("train", "+4", "-"), wantError: `annotation tranche.dev/gang-min-count is "+4"; write a whole number from 1 to 100000, such as "4"`},
		"zero":                     {pod: member("train", "0", "-"), wantError: `is "0"; write`},
		"negative":                 {pod: member("train", "-4", "-"), wantError: `is "-4"; write`},
		"a leading zero":           {pod: member("train", "04", "-"), wantError: `is "04"; write`},
		"a decimal":                {pod: member("train", "4.0", "-"), wantError: `is "4.0"; write`},
		"an exponent":              {pod: member("train", "1e3", "-"), wantError: `is "1e3"; write`},
		"a space":                  {pod: member("train", " 4", "-"), wantError: `is " 4"; write`},
		"nothing written":          {pod: member("train", "", "-"), wantError: `is ""; write`},
		"too large":                {pod: member("train", "100001", "-"), wantError: "write a whole number from 1 to 100000"},
		"far too large":            {pod: member("train", "99999999999999999999", "-"), wantError: "write a whole number from 1 to 100000"},
		"a native group's size":    {pod: member("-", "x", "native"), wantError: `is "x"; write`},
		"a native group's name":    {pod: member("-", "-", long+"a"), wantError: "has 64 characters; gangs have at most 63"},
		"many digits, cut":         {pod: member("train", strings.Repeat("9", 1<<16), "-"), wantError: `99"…; write`},
		"many characters, not cut": {pod: member("train", strings.Repeat("€", 1<<16), "-"), wantError: `€"…; write`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			gang, minCount, native, err := contract.GangOf(tc.pod)
			if gang != tc.wantName || minCount != tc.wantMinCount || native != tc.wantNative {
				t.Errorf("got %q, %d, native %t; want %q, %d, %t", gang, minCount, native, tc.wantName, tc.wantMinCount, tc.wantNative)
			}
			switch {
			case (err != nil) != (tc.wantError != ""):
				t.Errorf("error %v, want %q", err, tc.wantError)
			case err != nil && (!errors.Is(err, contract.ErrGang) || !strings.Contains(err.Error(), tc.wantError)):
				t.Errorf("error %v, want %q", err, tc.wantError)
			case err != nil && len(err.Error()) > 400:
				t.Errorf("the sentence has %d characters", len(err.Error()))
			}
		})
	}
}

func TestParseGangTakesOwners(t *testing.T) {
	owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{contract.GangLabel: "train"}, Annotations: map[string]string{contract.GangMinCountAnnotation: "8"},
	}}
	if name, minCount, err := contract.ParseGang(owner); name != "train" || minCount != 8 || err != nil {
		t.Errorf("got %q, %d, %v", name, minCount, err)
	}
}

// One number has one spelling.
func TestMinCountIsWhatItSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.StringMatching(`[-+ ]?[0-9_.e]{1,7}`),
			rapid.Map(rapid.IntRange(-2, contract.MaxGangMinCount+2), strconv.Itoa),
		).Draw(t, "text")
		_, n, err := contract.ParseGang(member("train", text, "-"))
		if number, bad := strconv.Atoi(text); bad == nil && number >= 1 && number <= contract.MaxGangMinCount && strconv.Itoa(number) == text {
			if err != nil || int(n) != number {
				t.Fatalf("%q is %d, %v", text, n, err)
			}
		} else if err == nil {
			t.Fatalf("%q is %d", text, n)
		}
	})
}
