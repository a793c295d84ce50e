// Command client is segmentio/kafka-go behind the line protocol of tests/clients/programs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
)

const (
	tick     = 10 * time.Millisecond
	maxBurst = 100
	// A Writer has no bound of its own, and sends one batch of a partition after the other: what queues up while nobody leads
	// would have to be sent before it closes.
	maxUnanswered = 200
	closeTimeout  = time.Minute
	// records of a partition: a commit that waits for its answer after each one is slower than they come
	commitEvery = 50
)

type client struct {
	*program
	answered atomic.Int64
}

func main() {
	c := &client{program: newProgram()}
	c.run(map[string]func(context.Context){
		"producer": c.produce,
		"consumer": c.consume,
	})
}

func version() string { return versionOf("github.com/segmentio/kafka-go") }

func (c *client) brokers() []string { return strings.Split(c.text("bootstrap"), ",") }

// due is the messages whose time has come, each with its partition.
func (c *client) due() []kafka.Message {
	count := min(int(time.Since(c.began).Seconds()*float64(c.number("rate", 100)))-c.sent,
		maxBurst, maxUnanswered-(c.sent-int(c.answered.Load())))
	var due []kafka.Message
	for ; count > 0; count-- {
		value := "live|" + c.text("name") + "|" + strconv.Itoa(c.next) + "|" + filler
		due = append(due, kafka.Message{Value: []byte(value)})
		c.next++
		c.sent++
	}
	return due
}

func numberOf(message kafka.Message) int {
	_, number := identity(message.Value)
	return number
}

// byNumber puts each message where the judge looks for it.
type byNumber struct{ partitions int }

func (b byNumber) Balance(message kafka.Message, _ ...int) int {
	return numberOf(message) % b.partitions
}

// A Writer sends one batch of a partition after the other, so that order is kept; it is not idempotent.
func (c *client) produce(stop context.Context) {
	writer := &kafka.Writer{
		Addr:         kafka.TCP(c.brokers()...),
		Topic:        c.text("topic"),
		Balancer:     byNumber{c.number("partitions", 1)},
		BatchTimeout: 5 * time.Millisecond,
		RequiredAcks: kafka.RequireAll,
		Async:        true,
		Transport:    &kafka.Transport{ClientID: c.text("name")},
		Completion: func(messages []kafka.Message, err error) {
			c.answered.Add(int64(len(messages)))
			for _, message := range messages {
				if err == nil {
					c.acked(numberOf(message), message.Offset)
				} else {
					c.failed([]int{numberOf(message)}, true, err)
				}
			}
		},
		ErrorLogger: kafka.LoggerFunc(func(text string, more ...any) {}),
	}
	c.say("ready", fields{"version": version()})
	for stop.Err() == nil {
		if due := c.due(); len(due) > 0 {
			if err := writer.WriteMessages(context.Background(), due...); err != nil {
				c.error("error", err)
			}
		}
		time.Sleep(tick)
		c.flush()
	}
	fmt.Fprintf(os.Stderr, "closing with %d records without an answer\n", c.sent-int(c.answered.Load()))
	if err := writer.Close(); err != nil {
		c.error("error", err)
	}
	c.flush()
	c.say("closed", fields{"next": c.next})
}

// consume uses a ConsumerGroup, as a Reader does, with generations to be seen.
func (c *client) consume(stop context.Context) {
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                c.text("group"),
		Brokers:           c.brokers(),
		Dialer:            &kafka.Dialer{ClientID: c.text("name"), Timeout: 10 * time.Second},
		Topics:            []string{c.text("topic")},
		SessionTimeout:    10 * time.Second,
		HeartbeatInterval: time.Second,
		RebalanceTimeout:  time.Duration(c.number("rebalance_s", 30)) * time.Second,
		JoinGroupBackoff:  time.Second,
		StartOffset:       kafka.FirstOffset,
		ErrorLogger:       kafka.LoggerFunc(func(text string, more ...any) {}),
	})
	if err != nil {
		panic(err)
	}
	c.say("ready", fields{"version": version()})
	for stop.Err() == nil {
		generation, err := group.Next(stop)
		switch {
		case err == nil:
			c.read(stop, generation)
		case errors.Is(err, kafka.ErrGroupClosed) || stop.Err() != nil:
		case strings.Contains(err.Error(), "timeout"):
			// what its Reader logs and tries again: a rebalance took longer than RebalanceTimeout
			c.error("notice", err)
		default:
			c.error("error", err)
		}
	}
	group.Close()
	c.say("closed", nil)
}

func (c *client) read(stop context.Context, generation *kafka.Generation) {
	topic := c.text("topic")
	pairs := [][2]any{}
	for _, one := range generation.Assignments[topic] {
		pairs = append(pairs, [2]any{topic, one.ID})
	}
	c.say("assigned", fields{"p": pairs})
	var reading sync.WaitGroup
	for _, one := range generation.Assignments[topic] {
		reading.Add(1)
		generation.Start(func(ended context.Context) {
			defer reading.Done()
			either, cancel := context.WithCancel(ended)
			defer cancel()
			defer context.AfterFunc(stop, cancel)()
			c.partition(either, generation, one.ID, one.Offset)
		})
	}
	generation.Start(func(ended context.Context) {
		select {
		case <-ended.Done():
		case <-stop.Done():
		}
	})
	reading.Wait()
	if len(pairs) == 0 {
		return
	}
	c.say("revoked", fields{"p": pairs})
}

func (c *client) partition(ended context.Context, generation *kafka.Generation, partition int, offset int64) {
	topic := c.text("topic")
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: c.brokers(), Topic: topic, Partition: partition,
		Dialer: &kafka.Dialer{ClientID: c.text("name"), Timeout: 10 * time.Second},
		// Its deadline for an answer, too: with 100 ms, brokers of a machine that is busy answered hundreds of fetches too late.
		MaxWait: 2 * time.Second,
		ErrorLogger: kafka.LoggerFunc(func(text string, more ...any) {
			fmt.Fprintf(os.Stderr, time.Now().UTC().Format("15:04:05.000 ")+text+"\n", more...)
		}),
	})
	defer reader.Close()
	if err := reader.SetOffset(offset); err != nil {
		c.error("error", err)
		return
	}
	// A generation ends when its functions have, and its commits are taken until then.
	read, committed := offset, offset
	commit := func() {
		if read == committed {
			return
		}
		offsets := map[string]map[int]int64{topic: {partition: read}}
		if err := generation.CommitOffsets(offsets); err != nil {
			c.error("notice", errors.Join(errors.New("commit"), err))
			return
		}
		committed = read
	}
	defer commit()
	for ended.Err() == nil {
		message, err := reader.ReadMessage(ended)
		if ended.Err() != nil {
			return // what was read and not said was not read
		}
		if err != nil {
			c.error("error", err)
			return
		}
		name, number := identity(message.Value)
		c.say("records", fields{"topic": topic, "p": partition, "r": [][3]any{{message.Offset, name, number}}})
		if read = message.Offset + 1; read-committed >= commitEvery {
			commit()
		}
	}
}
