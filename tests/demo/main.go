// Command demo brings up the local cluster and tells, on real objects, what
// Tranche does so far: pods that share a card, each kind of request, a pod that
// says why it waits and starts when there is room, a gang that starts whole, a
// team that takes back what another borrowed. It leaves the cluster running for
// its user to play with.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
	"github.com/tranche-dev/tranche/tests/testkit"
)

// patience bounds every wait of the story.
const patience = 2 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	options, err := cluster.OptionsFromEnv(os.LookupEnv)
	if err != nil {
		return err
	}
	options.Out = os.Stdout
	kube, err := cluster.Up(ctx, options)
	if err != nil {
		return err
	}
	client, err := kube.Client()
	if err != nil {
		return err
	}
	s := &story{kube: kube, client: client, node: "tranche-real-0", real: options.RealNode}
	if !s.real {
		s.node = "tranche-sim-0"
	}
	if err := s.tell(ctx); err != nil {
		return err
	}
	bin, err := filepath.Rel(root, filepath.Join(kube.Dir(), "bin"))
	if err != nil {
		return err
	}
	config, err := filepath.Rel(root, kube.Kubeconfig())
	if err != nil {
		return err
	}
	fmt.Printf(`
The cluster keeps running. To play with it:

  export KUBECONFIG=$PWD/%s PATH=$PWD/%s:$PATH
  kubectl -n demo get pods -o wide
  kubectl get queues
  kubectl -n demo get pod service-0 -o jsonpath='{.metadata.annotations.tranche\.dev/plan}'
  kubectl -n demo delete pod service-0 service-1   # research borrows again
  kubectl apply -f manifests/samples/        # more kinds of requests; their images are placeholders,
                                             # so those on tranche-real-0 end in ErrImagePull
  curl -s %s/v1/state

  make cluster-down                          # removes every trace
`, config, bin, kube.ExtenderOpsURL())
	return nil
}

// story is the demo in progress.
type story struct {
	kube   *cluster.Cluster
	client kubernetes.Interface
	// node is where all of it happens; real says that a kubelet runs it.
	node string
	real bool
}

const namespace = "demo"

func (s *story) tell(ctx context.Context) error {
	if err := s.clear(ctx); err != nil {
		return err
	}
	if err := s.alone(ctx); err != nil {
		return err
	}
	chapter("Two notebooks ask for half a GPU each. They share one card.")
	halves := []*corev1.Pod{
		s.pod("notebook-a").Fraction("0.5").Obj(),
		s.pod("notebook-b").Fraction("0.5").Obj(),
	}
	if err := s.start(ctx, halves...); err != nil {
		return err
	}
	if s.real {
		if err := s.showInside(ctx, "notebook-a", "notebook-b"); err != nil {
			return err
		}
	}
	if err := s.gpuMap(ctx); err != nil {
		return err
	}

	chapter("A model server asks for 20Gi of GPU memory, a pod for two parts of 40 shares on different cards.")
	if err := s.start(ctx,
		s.pod("server").Memory("20Gi").Obj(),
		s.pod("pair").Fraction("0.4").Count("2").Obj(),
	); err != nil {
		return err
	}
	if err := s.gpuMap(ctx); err != nil {
		return err
	}
	free, err := s.whollyFree(ctx)
	if err != nil {
		return err
	}
	asks := fmt.Sprint(free + 1)
	chapter("A training job asks for " + asks + " whole GPU(s), one more than are wholly free. It waits, and says why.")
	job := s.pod("training").Container("main", testkit.GPUs(asks)).Obj()
	if err := s.create(ctx, job); err != nil {
		return err
	}
	if err := s.showReason(ctx, job.Name); err != nil {
		return err
	}

	chapter("The pair ends. The training job starts.")
	if err := s.client.CoreV1().Pods(namespace).Delete(ctx, "pair", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := s.waitRunning(ctx, job.Name); err != nil {
		return err
	}
	if err := s.gpuMap(ctx); err != nil {
		return err
	}
	if err := s.tellGang(ctx, job.Name); err != nil {
		return err
	}
	return s.tellQueues(ctx)
}

// tellGang has pods that are worth nothing without each other wait for the
// training job, and then start together.
func (s *story) tellGang(ctx context.Context, inTheWay string) error {
	if err := s.remove(ctx, "server"); err != nil {
		return err
	}
	free, err := s.whollyFree(ctx)
	if err != nil {
		return err
	}
	// Two members to a GPU, on one GPU more than are free.
	size, share := 2*(free+1), testkit.Shares("50")
	minCount := strconv.Itoa(size)
	chapter("A gang of " + minCount + " needs one GPU more than are free. None of it starts, none of it holds a GPU, and it says why.")
	var gang []*corev1.Pod
	for i := range size {
		pod := s.pod(fmt.Sprintf("worker-%d", i)).Container("main", share).
			Label(contract.GangLabel, "workers").Annotation(contract.GangMinCountAnnotation, minCount).Obj()
		if err := s.create(ctx, pod); err != nil {
			return err
		}
		gang = append(gang, pod)
	}
	if err := s.showEvent(ctx, gang[0].Name, "GangWaiting"); err != nil {
		return err
	}
	if err := s.kubectl(ctx, "get", "gangs,pods"); err != nil {
		return err
	}

	chapter("The training job ends. The whole gang starts.")
	if err := s.client.CoreV1().Pods(namespace).Delete(ctx, inTheWay, metav1.DeleteOptions{}); err != nil {
		return err
	}
	for _, pod := range gang {
		if err := s.waitRunning(ctx, pod.Name); err != nil {
			return err
		}
	}
	if err := s.kubectl(ctx, "get", "gangs"); err != nil {
		return err
	}
	return s.gpuMap(ctx)
}
