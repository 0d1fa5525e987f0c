package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/testkit"
)

// webhook sends reviews of new pods as the API server does.
func (b *scaleBench) webhook(ctx context.Context) ([]row, error) {
	config, err := b.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, "tranche", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	to := config.Webhooks[0].ClientConfig
	if to.URL == nil {
		return nil, fmt.Errorf("the webhook %s has no URL", config.Webhooks[0].Name)
	}
	transport, err := rest.TransportFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: to.CABundle}})
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: transport}
	var rows []row
	for _, kind := range []struct {
		what string
		pod  *corev1.Pod
	}{
		{"half a GPU by annotation", testkit.MakePod(namespace, "half").Container("main").Fraction("0.5").Obj()},
		{"a member of a gang", member("gang")(0)},
		{"a pod of a queue", testkit.MakePod(namespace, "queued").Container("main", testkit.Shares("25")).Label(contract.QueueLabel, "default").Obj()},
	} {
		var all durations
		for i := range warm + calls {
			took, err := review(ctx, client, *to.URL, kind.pod)
			if err != nil {
				return rows, fmt.Errorf("webhook, %s: %w", kind.what, err)
			}
			if i >= warm {
				all = append(all, took)
			}
		}
		slices.Sort(all)
		fmt.Printf("webhook, %s: %s\n", kind.what, all.both())
		rows = append(rows, row{fmt.Sprintf("webhook, HTTPS and JSON, %s, %d nodes: p50 (p99) of %d calls", kind.what, b.nodes, calls), all.both(), "", "", "p99 <= 5 ms"})
	}
	return rows, nil
}

// review asks about one new pod. It fails if the webhook does not change it.
func review(ctx context.Context, client *http.Client, url string, pod *corev1.Pod) (time.Duration, error) {
	object, err := json.Marshal(pod)
	if err != nil {
		return 0, err
	}
	uid := uuid.NewUUID()
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: uid, Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Name: pod.Name, Namespace: pod.Namespace, Operation: admissionv1.Create,
			UserInfo: authenticationv1.UserInfo{Username: "jane", Groups: []string{"system:authenticated"}},
			Object:   runtime.RawExtension{Raw: object}, DryRun: new(false),
		},
	})
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	began := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, fmt.Errorf("%s: %w: %.300s", response.Status, err, body)
	}
	if r := answer.Response; r == nil || r.UID != uid || !r.Allowed || len(r.Patch) == 0 {
		return 0, fmt.Errorf("%s: not allowed and changed: %.300s", response.Status, body)
	}
	return took, nil
}
