// Command client is franz-go behind the line protocol of tests/clients/programs.
package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	tick         = 10 * time.Millisecond
	maxBurst     = 100
	closeTimeout = time.Minute
)

type client struct{ *program }

func main() {
	c := &client{newProgram()}
	c.run(map[string]func(context.Context){
		"producer":     c.produce,
		"transactions": c.transactions,
		"consumer":     c.consume,
	})
}

func (c *client) connect(more ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(strings.Split(c.text("bootstrap"), ",")...),
		kgo.ClientID(c.text("name")),
		kgo.ProducerLinger(5 * time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}, more...)...)
	if err != nil {
		panic(err)
	}
	c.say("ready", fields{"version": version()})
	return made
}

func version() string { return versionOf("github.com/twmb/franz-go") }

// due is the records whose time has come, by number.
func (c *client) due() []*kgo.Record {
	count := min(int(time.Since(c.began).Seconds()*float64(c.number("rate", 100)))-c.sent, maxBurst)
	var due []*kgo.Record
	for ; count > 0; count-- {
		value := "live|" + c.text("name") + "|" + strconv.Itoa(c.next) + "|" + filler
		due = append(due, &kgo.Record{
			Topic: c.text("topic"), Partition: int32(c.next % c.number("partitions", 1)), Value: []byte(value),
		})
		c.next++
		c.sent++
	}
	return due
}

func number(record *kgo.Record) int {
	_, number := identity(record.Value)
	return number
}

func (c *client) produce(stop context.Context) {
	made := c.connect()
	for stop.Err() == nil {
		for _, record := range c.due() {
			made.Produce(context.Background(), record, func(record *kgo.Record, err error) {
				if err == nil {
					c.acked(number(record), record.Offset)
				} else {
					c.failed([]int{number(record)}, true, err)
				}
			})
		}
		time.Sleep(tick)
		c.flush()
	}
	c.end(made)
	c.flush()
	c.say("closed", fields{"next": c.next})
}

func (c *client) end(made *kgo.Client) {
	limit, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := made.Flush(limit); err != nil {
		c.error("error", err)
	}
	made.Close()
}

func (c *client) transactions(stop context.Context) {
	made := c.connect(kgo.TransactionalID(c.text("transactional_id")))
	ticks := max(1, c.number("commit_ms", 200)/int(tick/time.Millisecond))
	for stop.Err() == nil {
		var lock sync.Mutex
		offsets := map[int]int64{}
		var numbers []int
		var failure error
		if err := made.BeginTransaction(); err != nil {
			c.error("error", err)
			break
		}
		for range ticks {
			for _, record := range c.due() {
				numbers = append(numbers, number(record))
				made.Produce(context.Background(), record, func(record *kgo.Record, err error) {
					lock.Lock()
					defer lock.Unlock()
					if err != nil {
						failure = err
					} else {
						offsets[number(record)] = record.Offset
					}
				})
			}
			time.Sleep(tick)
		}
		limit, cancel := context.WithTimeout(context.Background(), closeTimeout)
		flushed := made.Flush(limit)
		lock.Lock()
		failure = errors.Join(flushed, failure)
		lock.Unlock()
		err := made.EndTransaction(limit, kgo.TransactionEndTry(failure == nil))
		cancel()
		switch {
		case err != nil:
			c.failed(numbers, true, errors.Join(err, failure))
		case failure != nil:
			c.error("error", failure)
			c.failed(numbers, false, failure)
		default:
			for _, one := range numbers {
				c.acked(one, offsets[one])
			}
		}
		c.flush()
		if err != nil {
			break
		}
	}
	made.Close()
	c.say("closed", fields{"next": c.next})
}

func (c *client) consume(stop context.Context) {
	say := func(event string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, some map[string][]int32) {
			pairs := [][2]any{}
			for topic, partitions := range some {
				for _, partition := range partitions {
					pairs = append(pairs, [2]any{topic, partition})
				}
			}
			c.say(event, fields{"p": pairs})
		}
	}
	options := []kgo.Opt{
		kgo.ConsumerGroup(c.text("group")),
		kgo.ConsumeTopics(c.text("topic")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), // nothing is revoked between a poll and its commit
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.SessionTimeout(10 * time.Second),
		kgo.OnPartitionsAssigned(say("assigned")),
		kgo.OnPartitionsRevoked(say("revoked")),
		kgo.OnPartitionsLost(say("lost")),
	}
	if c.arguments["isolation"] == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if instance := c.arguments["instance"]; instance != "" {
		options = append(options, kgo.InstanceID(instance))
	}
	switch {
	case c.arguments["protocol"] == "consumer":
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
	case c.arguments["assignor"] == "cooperative-sticky":
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	default:
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	}
	made := c.connect(options...)
	for stop.Err() == nil {
		c.poll(stop, made)
	}
	made.CloseAllowingRebalance()
	c.say("closed", nil)
}

func (c *client) poll(stop context.Context, made *kgo.Client) {
	limit, cancel := context.WithTimeout(stop, 100*time.Millisecond)
	defer cancel()
	fetches := made.PollRecords(limit, 500)
	defer made.AllowRebalance()
	fetches.EachError(func(_ string, _ int32, err error) {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			c.error("error", err)
		}
	})
	fetches.EachPartition(func(partition kgo.FetchTopicPartition) {
		records := [][3]any{}
		for _, record := range partition.Records {
			name, number := identity(record.Value)
			records = append(records, [3]any{record.Offset, name, number})
		}
		if len(records) > 0 {
			c.say("records", fields{"topic": partition.Topic, "p": partition.Partition, "r": records})
		}
	})
	if records := fetches.Records(); len(records) > 0 {
		limit, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := made.CommitRecords(limit, records...); err != nil {
			c.error("error", errors.Join(errors.New("commit"), err))
		}
	}
}
